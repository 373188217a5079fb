"""Terminals, and what belongs to a process: rights, scheduling, signals, timers."""

from __future__ import annotations

import ctypes
import fcntl
import os
import pty
import resource
import signal
import struct
import termios
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tests.integration.boxd.suspension.facilities.program import (
    call,
    facility,
    libc,
    prctl,
    status,
)

if TYPE_CHECKING:
    from collections.abc import Iterator


@facility
def terminal_size_and_modes() -> Iterator[None]:
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 44, 0, 0))
    modes = termios.tcgetattr(slave)
    modes[3] &= ~termios.ECHO
    termios.tcsetattr(slave, termios.TCSANOW, modes)
    yield
    assert os.get_terminal_size(master) == (44, 33)
    assert termios.tcgetattr(slave) == modes


@facility
def controlling_terminal() -> Iterator[None]:
    reading, writing = os.pipe()
    child, master = pty.fork()
    if child == 0:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.write(writing, b"x")
        time.sleep(3600)
    os.read(reading, 1)
    yield
    os.write(master, b"\x03")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGINT


@facility
def process_group_and_session() -> Iterator[None]:
    before = os.getpid(), os.getpgrp(), os.getsid(0)
    yield
    assert (os.getpid(), os.getpgrp(), os.getsid(0)) == before


@facility
def zombie() -> Iterator[None]:
    child = os.fork()
    if child == 0:
        os._exit(9)
    yield
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9


@facility
def threads_with_names() -> Iterator[None]:
    wake = threading.Event()

    def work() -> None:
        prctl(15, ctypes.cast(ctypes.c_char_p(b"worker"), ctypes.c_void_p).value or 0)
        wake.wait()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    yield
    names = {place.read_text().strip() for place in Path("/proc/self/task").glob("*/comm")}
    wake.set()
    assert "worker" in names


@facility
def supplementary_groups() -> Iterator[None]:
    os.setgroups([7, 8])
    yield
    assert sorted(os.getgroups()) == [7, 8]


@facility
def dropped_capabilities() -> Iterator[None]:
    prctl(24, 0)
    before = status("CapBnd")
    yield
    assert status("CapBnd") == before


@facility
def resource_limits() -> Iterator[None]:
    resource.setrlimit(resource.RLIMIT_FSIZE, (12345, 23456))
    yield
    assert resource.getrlimit(resource.RLIMIT_FSIZE) == (12345, 23456)


@facility
def environment_and_arguments() -> Iterator[None]:
    before = Path("/proc/self/cmdline").read_bytes(), Path("/proc/self/environ").read_bytes()
    yield
    assert (Path("/proc/self/cmdline").read_bytes(), Path("/proc/self/environ").read_bytes()) == (
        before
    )


@facility
def system_call_filter() -> Iterator[None]:
    """Answers EPERM to getpgid."""
    program = struct.pack("HBBI", 0x20, 0, 0, 0) + struct.pack("HBBI", 0x15, 0, 1, 121)
    program += struct.pack("HBBI", 6, 0, 0, 0x50001) + struct.pack("HBBI", 6, 0, 0, 0x7FFF0000)
    buffer = ctypes.create_string_buffer(program)
    head = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", 4, ctypes.addressof(buffer)))
    prctl(38, 1)  # PR_SET_NO_NEW_PRIVS: without it, a filter needs CAP_SYS_ADMIN
    prctl(22, 2, ctypes.addressof(head))
    yield
    try:
        os.getpgid(0)
    except PermissionError:
        return
    raise AssertionError("the filter is gone")


@facility
def no_new_privileges() -> Iterator[None]:
    prctl(38, 1)
    yield
    assert prctl(39) == 1


@facility
def parent_death_signal() -> Iterator[None]:
    prctl(1, signal.SIGHUP)
    yield
    value = ctypes.c_int()
    prctl(2, ctypes.addressof(value))
    assert value.value == signal.SIGHUP


@facility
def child_subreaper() -> Iterator[None]:
    prctl(36, 1)
    yield
    value = ctypes.c_int()
    prctl(37, ctypes.addressof(value))
    assert value.value == 1


@facility
def not_dumpable() -> Iterator[None]:
    prctl(4, 0)
    yield
    assert prctl(3) == 0


@facility
def no_huge_pages() -> Iterator[None]:
    prctl(41, 1)
    yield
    assert prctl(42) == 1


@facility
def timer_slack() -> Iterator[None]:
    prctl(29, 123456)
    yield
    assert prctl(30) == 123456


@facility
def security_bits() -> Iterator[None]:
    prctl(28, 0x4)
    yield
    assert prctl(27) == 0x4


@facility
def out_of_memory_score() -> Iterator[None]:
    Path("/proc/self/oom_score_adj").write_text("700")
    yield
    assert Path("/proc/self/oom_score_adj").read_text() == "700\n"


@facility
def niceness() -> Iterator[None]:
    os.nice(7)
    yield
    assert os.getpriority(os.PRIO_PROCESS, 0) == 7


@facility
def scheduling_policy() -> Iterator[None]:
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    yield
    assert os.sched_getscheduler(0) == os.SCHED_BATCH


@facility
def input_output_priority() -> Iterator[None]:
    call(libc.syscall(251, 1, 0, 3 << 13))
    yield
    assert call(libc.syscall(252, 1, 0)) == 3 << 13


@facility
def processor_affinity() -> Iterator[None]:
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    before = os.sched_getaffinity(0)
    yield
    assert os.sched_getaffinity(0) == before


@facility
def pending_and_blocked_signals() -> Iterator[None]:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    os.kill(os.getpid(), signal.SIGUSR1)
    yield
    assert signal.SIGUSR1 in signal.sigpending()
    assert signal.SIGUSR1 in signal.pthread_sigmask(signal.SIG_BLOCK, [])


@facility
def ignored_signal() -> Iterator[None]:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    yield
    os.kill(os.getpid(), signal.SIGHUP)


@facility
def signal_handler() -> Iterator[None]:
    signals: list[int] = []
    signal.signal(signal.SIGUSR1, lambda number, _: signals.append(number))
    yield
    os.kill(os.getpid(), signal.SIGUSR1)
    assert signals == [signal.SIGUSR1]


@facility
def alternate_signal_stack() -> Iterator[None]:
    memory = ctypes.create_string_buffer(65536)
    place = ctypes.addressof(memory)
    call(libc.sigaltstack(struct.pack("QiiQ", place, 0, 0, 65536), None))
    yield
    stack = ctypes.create_string_buffer(24)
    call(libc.sigaltstack(None, stack))
    assert struct.unpack("QiiQ", stack.raw)[0] == place


@facility
def interval_timer() -> Iterator[None]:
    signal.setitimer(signal.ITIMER_REAL, 3600, 1800)
    yield
    left, period = signal.getitimer(signal.ITIMER_REAL)
    assert period == 1800
    assert 3000 < left <= 3600


@facility
def posix_timer() -> Iterator[None]:
    timer = ctypes.c_void_p()
    event = ctypes.create_string_buffer(struct.pack("Qii48x", 0, signal.SIGALRM, 1))
    call(libc.timer_create(time.CLOCK_MONOTONIC, event, ctypes.byref(timer)))
    call(libc.timer_settime(timer, 0, struct.pack("qqqq", 0, 0, 3600, 0), None))
    yield
    left = ctypes.create_string_buffer(32)
    call(libc.timer_gettime(timer, left))
    assert 3000 < struct.unpack("qqqq", left.raw)[2] <= 3600


@facility
def monotonic_clock() -> Iterator[None]:
    before = time.monotonic()
    yield
    assert 0 <= time.monotonic() - before < 600


@facility
def sleep() -> Iterator[None]:
    child = os.fork()
    if child == 0:
        time.sleep(2)
        os._exit(3)
    yield
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3


@facility
def process_shared_lock() -> Iterator[None]:
    import multiprocessing

    lock = multiprocessing.Lock()
    lock.acquire()
    yield
    assert not lock.acquire(block=False)
