"""Event descriptors, asynchronous input and output, and notifications of files."""

from __future__ import annotations

import ctypes
import fcntl
import os
import select
import signal
import struct
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tests.integration.boxd.suspension.facilities.program import call, facility, libc

if TYPE_CHECKING:
    from collections.abc import Iterator

IO_SETUP, IO_GETEVENTS, IO_SUBMIT = 206, 208, 209
F_NOTIFY, DN_CREATE = 1026, 0x4
EFD_SEMAPHORE = 1
TFD_TIMER_ABSTIME = 1


@facility
def semaphore_event_counter() -> Iterator[None]:
    descriptor = call(libc.eventfd(2, EFD_SEMAPHORE))
    yield
    assert [os.read(descriptor, 8) for _ in range(2)] == [struct.pack("Q", 1)] * 2


@facility
def nested_epoll_sets() -> Iterator[None]:
    reading, writing = os.pipe()
    inner, outer = select.epoll(), select.epoll()
    inner.register(reading, select.EPOLLIN)
    outer.register(inner, select.EPOLLIN)
    yield
    os.write(writing, b"x")
    assert outer.poll(5) == [(inner.fileno(), select.EPOLLIN)]


@facility
def epoll_one_shot_that_is_spent() -> Iterator[None]:
    reading, writing = os.pipe()
    poll = select.epoll()
    poll.register(reading, select.EPOLLIN | select.EPOLLONESHOT)
    os.write(writing, b"x")
    assert poll.poll(5)
    yield
    assert not poll.poll(0)


@facility
def epoll_of_a_descriptor_that_is_closed() -> Iterator[None]:
    """The set refers to the open file, which lives on by its duplicate."""
    reading, writing = os.pipe()
    duplicate = os.dup(reading)
    poll = select.epoll()
    poll.register(reading, select.EPOLLIN)
    os.close(reading)
    yield
    assert os.fstat(duplicate)
    os.write(writing, b"x")
    assert poll.poll(5) == [(reading, select.EPOLLIN)]


@facility
def signal_descriptor_with_a_pending_signal() -> Iterator[None]:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    mask = ctypes.create_string_buffer(128)
    call(libc.sigemptyset(mask))
    call(libc.sigaddset(mask, signal.SIGUSR1))
    descriptor = call(libc.signalfd(-1, mask, os.O_NONBLOCK))
    os.kill(os.getpid(), signal.SIGUSR1)
    yield
    assert os.read(descriptor, 128)[0] == signal.SIGUSR1


@facility
def timer_descriptor_that_has_expired() -> Iterator[None]:
    descriptor = call(libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK))
    call(libc.timerfd_settime(descriptor, 0, struct.pack("qqqq", 3600, 0, 0, 1), None))
    assert select.select([descriptor], [], [], 5)[0]
    yield
    assert os.read(descriptor, 8) == struct.pack("Q", 1)


@facility
def timer_descriptor_of_wall_time() -> Iterator[None]:
    descriptor = call(libc.timerfd_create(time.CLOCK_REALTIME, 0))
    spec = struct.pack("qqqq", 0, 0, int(time.time()) + 3600, 0)
    call(libc.timerfd_settime(descriptor, TFD_TIMER_ABSTIME, spec, None))
    yield
    left = ctypes.create_string_buffer(32)
    call(libc.timerfd_gettime(descriptor, left))
    assert 3000 < struct.unpack("qqqq", left.raw)[2] <= 3600


@facility
def timer_descriptor_of_boot_time() -> Iterator[None]:
    descriptor = call(libc.timerfd_create(time.CLOCK_BOOTTIME, 0))
    call(libc.timerfd_settime(descriptor, 0, struct.pack("qqqq", 0, 0, 3600, 0), None))
    yield
    left = ctypes.create_string_buffer(32)
    call(libc.timerfd_gettime(descriptor, left))
    assert 3000 < struct.unpack("qqqq", left.raw)[2] <= 3600


@facility
def asynchronous_io_context() -> Iterator[None]:
    """Submits a write after the suspension, and has an event of before it in the ring."""
    context = ctypes.c_ulong()
    call(libc.syscall(IO_SETUP, 8, ctypes.byref(context)))
    descriptor = os.open("/root/asynchronous", os.O_RDWR | os.O_CREAT)
    data = ctypes.create_string_buffer(b"kept")
    block = struct.pack(
        "QIIHhIQQqQII", 7, 0, 0, 1, 0, descriptor, ctypes.addressof(data), 4, 0, 0, 0, 0
    )
    control = ctypes.create_string_buffer(block)
    pointers = (ctypes.c_void_p * 1)(ctypes.addressof(control))
    call(libc.syscall(IO_SUBMIT, context, ctypes.c_long(1), pointers))
    yield
    call(libc.syscall(IO_SUBMIT, context, ctypes.c_long(1), pointers))
    events = ctypes.create_string_buffer(64)
    assert call(libc.syscall(IO_GETEVENTS, context, ctypes.c_long(2), ctypes.c_long(2), events, 0))
    assert struct.unpack("QQqq", events.raw[:32])[::2] == (7, 4)
    assert os.pread(descriptor, 4, 0) == b"kept"


@facility
def inotify_watch_of_a_renamed_file() -> Iterator[None]:
    descriptor = call(libc.inotify_init1(os.O_NONBLOCK))
    Path("/root/before").touch()
    call(libc.inotify_add_watch(descriptor, b"/root/before", 0x4))
    os.rename("/root/before", "/root/after")
    yield
    os.chmod("/root/after", 0o600)
    assert struct.unpack("iIII", os.read(descriptor, 4096)[:16])[1] == 0x4


@facility
def inotify_watch_of_a_removed_file() -> Iterator[None]:
    """The watch goes on, or says that it has ended (IN_IGNORED)."""
    descriptor = call(libc.inotify_init1(os.O_NONBLOCK))
    file = os.open("/root/watched-and-removed", os.O_RDWR | os.O_CREAT)
    call(libc.inotify_add_watch(descriptor, b"/root/watched-and-removed", 0x2))
    os.unlink("/root/watched-and-removed")
    yield
    os.write(file, b"x")
    assert struct.unpack("iIII", os.read(descriptor, 4096)[:16])[1] in (0x2, 0x8000)


@facility
def directory_notification() -> Iterator[None]:
    signals: list[int] = []
    signal.signal(signal.SIGIO, lambda number, _: signals.append(number))
    os.mkdir("/root/notified")
    descriptor = os.open("/root/notified", os.O_RDONLY | os.O_DIRECTORY)
    fcntl.fcntl(descriptor, F_NOTIFY, DN_CREATE)
    yield
    Path("/root/notified/new").touch()
    deadline = time.monotonic() + 5
    while not signals and time.monotonic() < deadline:
        time.sleep(0.01)
    assert signals


@facility
def system_wide_file_notification() -> Iterator[None]:
    """By fanotify_init."""
    call(libc.syscall(300, 0, 0))
    yield


@facility
def page_faults_of_user_space() -> Iterator[None]:
    """By userfaultfd."""
    call(libc.syscall(323, 1))
    yield


@facility
def performance_counter() -> Iterator[None]:
    """By perf_event_open."""
    attributes = ctypes.create_string_buffer(struct.pack("IIQ", 1, 128, 0), 128)
    call(libc.syscall(298, attributes, 0, -1, -1, 0))
    yield


@facility
def kernel_program() -> Iterator[None]:
    """By bpf(BPF_MAP_CREATE)."""
    attributes = ctypes.create_string_buffer(struct.pack("IIII", 2, 4, 4, 1), 72)
    call(libc.syscall(321, 0, attributes, 72))
    yield


@facility
def input_output_ring() -> Iterator[None]:
    """By io_uring_setup."""
    call(libc.syscall(425, 8, ctypes.create_string_buffer(120)))
    yield
