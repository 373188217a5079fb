"""Signals, timers and scheduling in their rarer states."""

from __future__ import annotations

import ctypes
import os
import signal
import struct
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tests.integration.boxd.suspension.facilities.program import call, facility, libc, status

if TYPE_CHECKING:
    from collections.abc import Iterator


def _remaining(timer: ctypes.c_void_p) -> tuple[int, ...]:
    left = ctypes.create_string_buffer(32)
    call(libc.timer_gettime(timer, left))
    return struct.unpack("qqqq", left.raw)


def _timer(clock: int, event: bytes) -> ctypes.c_void_p:
    timer = ctypes.c_void_p()
    buffer = ctypes.create_string_buffer(event, 64)
    call(libc.timer_create(clock, buffer, ctypes.byref(timer)))
    call(libc.timer_settime(timer, 0, struct.pack("qqqq", 5, 0, 3600, 0), None))
    return timer


@facility
def posix_timer_of_wall_time_without_a_signal() -> Iterator[None]:
    timer = _timer(time.CLOCK_REALTIME, struct.pack("Qii", 0, 0, 1))
    yield
    assert _remaining(timer)[0] == 5
    assert 3000 < _remaining(timer)[2] <= 3600


@facility
def posix_timer_of_one_thread() -> Iterator[None]:
    """SIGEV_THREAD_ID."""
    event = struct.pack("Qiii", 0, signal.SIGALRM, 4, threading.get_native_id())
    timer = _timer(time.CLOCK_MONOTONIC, event)
    yield
    assert 3000 < _remaining(timer)[2] <= 3600


@facility
def posix_timer_of_processor_time() -> Iterator[None]:
    timer = _timer(time.CLOCK_PROCESS_CPUTIME_ID, struct.pack("Qii", 0, signal.SIGALRM, 0))
    yield
    assert 3000 < _remaining(timer)[2] <= 3600


@facility
def posix_timer_of_boot_time() -> Iterator[None]:
    timer = _timer(time.CLOCK_BOOTTIME, struct.pack("Qii", 0, signal.SIGALRM, 0))
    yield
    assert 3000 < _remaining(timer)[2] <= 3600


@facility
def posix_timer_with_missed_signals() -> Iterator[None]:
    """Its signal is blocked and pending; the kernel counts the others."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
    timer = ctypes.c_void_p()
    event = ctypes.create_string_buffer(struct.pack("Qii", 0, signal.SIGUSR2, 0), 64)
    call(libc.timer_create(time.CLOCK_MONOTONIC, event, ctypes.byref(timer)))
    call(libc.timer_settime(timer, 0, struct.pack("qqqq", 0, 10**7, 0, 10**7), None))
    while signal.SIGUSR2 not in signal.sigpending():
        time.sleep(0.01)
    yield
    assert signal.SIGUSR2 in signal.sigpending()


@facility
def interval_timers_of_processor_time() -> Iterator[None]:
    signal.setitimer(signal.ITIMER_VIRTUAL, 3600, 60)
    signal.setitimer(signal.ITIMER_PROF, 3600, 70)
    yield
    values = signal.getitimer(signal.ITIMER_VIRTUAL), signal.getitimer(signal.ITIMER_PROF)
    assert (values[0][1], values[1][1]) == (60, 70), values
    assert 3000 < values[0][0] <= 3601, values


@facility
def queued_signals_with_values() -> Iterator[None]:
    number = signal.SIGRTMIN + 1
    signal.pthread_sigmask(signal.SIG_BLOCK, {number})
    for value in (7, 8):
        call(libc.sigqueue(os.getpid(), number, ctypes.c_void_p(value)))
    yield
    values = []
    mask = ctypes.create_string_buffer(128)
    call(libc.sigemptyset(mask))
    call(libc.sigaddset(mask, number))
    for _ in range(2):
        info = ctypes.create_string_buffer(128)
        assert libc.sigtimedwait(mask, info, struct.pack("qq", 2, 0)) == number
        values.append(struct.unpack_from("i", info, 24)[0])
    assert values == [7, 8]


@facility
def signal_pending_for_one_thread() -> Iterator[None]:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)
    before = status("SigPnd")
    yield
    assert status("SigPnd") == before
    assert int(before, 16)


@facility
def handler_flags() -> Iterator[None]:
    signal.signal(signal.SIGUSR1, lambda *_: None)
    signal.siginterrupt(signal.SIGUSR1, False)
    before = ctypes.create_string_buffer(152)
    call(libc.sigaction(signal.SIGUSR1, None, before))
    yield
    after = ctypes.create_string_buffer(152)
    call(libc.sigaction(signal.SIGUSR1, None, after))
    assert _handler(after) == _handler(before)


def _handler(action: ctypes.Array[ctypes.c_char]) -> tuple[bytes, ...]:
    """Its address, its mask and its flags."""
    return action.raw[:16], action.raw[136:140]


@facility
def scheduling_idle() -> Iterator[None]:
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    yield
    assert os.sched_getscheduler(0) == os.SCHED_IDLE


@facility
def scheduling_that_children_do_not_inherit() -> Iterator[None]:
    """SCHED_RESET_ON_FORK."""
    os.sched_setscheduler(0, os.SCHED_BATCH | 0x40000000, os.sched_param(0))
    yield
    assert os.sched_getscheduler(0) == os.SCHED_BATCH | 0x40000000


@facility
def niceness_of_one_thread() -> Iterator[None]:
    go = threading.Event()
    begun = threading.Event()
    values: list[int] = []

    def work() -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 9)
        begun.set()
        go.wait()
        values.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    begun.wait()
    yield
    go.set()
    thread.join()
    assert (values, os.getpriority(os.PRIO_PROCESS, 0)) == ([9], 0)


@facility
def processor_affinity_of_one_thread() -> Iterator[None]:
    go = threading.Event()
    begun = threading.Event()
    values: list[set[int]] = []
    everything = os.sched_getaffinity(0)

    def work() -> None:
        os.sched_setaffinity(0, {max(everything)})
        begun.set()
        go.wait()
        values.append(os.sched_getaffinity(0))

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    begun.wait()
    yield
    go.set()
    thread.join()
    assert (values, os.sched_getaffinity(0)) == ([{max(everything)}], everything)


@facility
def group_for_scheduling() -> Iterator[None]:
    place = Path("/proc/self/autogroup")
    before = place.read_text() if place.exists() else ""
    yield
    assert (place.read_text() if place.exists() else "").split(" ")[-1] == before.split(" ")[-1]


@facility
def orphan_in_a_group_of_its_own() -> Iterator[None]:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        orphan = os.fork()
        if orphan == 0:
            while os.getppid() == os.getpgrp():
                time.sleep(0.01)
            os.write(writing, b"%d %d" % (os.getpid(), os.getpgrp()))
            time.sleep(3600)
        os._exit(0)
    os.waitpid(child, 0)
    orphan, group = map(int, os.read(reading, 99).split())
    yield
    assert os.getpgid(orphan) == group == child


@facility
def session_of_its_own() -> Iterator[None]:
    child = os.fork()
    if child == 0:
        os.setsid()
        time.sleep(3600)
    while os.getsid(child) != child:
        time.sleep(0.01)
    yield
    assert (os.getsid(child), os.getpgid(child)) == (child, child)
