"""Files, pipes and descriptors of the kernel."""

from __future__ import annotations

import ctypes
import fcntl
import os
import select
import signal
import socket
import struct
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tests.integration.boxd.suspension.facilities.program import (
    call,
    facility,
    libc,
)

if TYPE_CHECKING:
    from collections.abc import Iterator


@facility
def file_position_and_flags() -> Iterator[None]:
    descriptor = os.open("/root/positioned", os.O_RDWR | os.O_CREAT | os.O_APPEND)
    os.write(descriptor, b"0123456789")
    os.lseek(descriptor, 3, os.SEEK_SET)
    yield
    assert os.lseek(descriptor, 0, os.SEEK_CUR) == 3
    assert fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_APPEND


@facility
def duplicated_descriptor() -> Iterator[None]:
    first = os.open("/root/duplicated", os.O_RDWR | os.O_CREAT)
    second = os.dup(first)
    yield
    os.write(first, b"123")
    assert os.lseek(second, 0, os.SEEK_CUR) == 3


@facility
def close_on_exec() -> Iterator[None]:
    first = os.open("/root/exec", os.O_RDWR | os.O_CREAT)
    second = os.dup(first)
    os.set_inheritable(second, True)
    yield
    assert (os.get_inheritable(first), os.get_inheritable(second)) == (False, True)


@facility
def unlinked_file() -> Iterator[None]:
    descriptor = os.open("/root/unlinked", os.O_RDWR | os.O_CREAT)
    os.write(descriptor, b"kept")
    os.unlink("/root/unlinked")
    yield
    assert os.pread(descriptor, 4, 0) == b"kept"


@facility
def file_without_a_name() -> Iterator[None]:
    descriptor = os.open("/root", os.O_RDWR | os.O_TMPFILE)
    os.write(descriptor, b"kept")
    yield
    assert os.pread(descriptor, 4, 0) == b"kept"


@facility
def directory_descriptor() -> Iterator[None]:
    descriptor = os.open("/etc", os.O_RDONLY | os.O_DIRECTORY)
    yield
    assert "hostname" in os.listdir(descriptor)


@facility
def path_descriptor() -> Iterator[None]:
    descriptor = os.open("/etc/hostname", os.O_PATH)
    yield
    assert os.readlink(f"/proc/self/fd/{descriptor}") == "/etc/hostname"


@facility
def flock_lock() -> Iterator[None]:
    descriptor = os.open("/root/flocked", os.O_RDWR | os.O_CREAT)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    yield
    other = os.open("/root/flocked", os.O_RDWR)
    try:
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return
    raise AssertionError("the lock is free")


@facility
def posix_lock() -> Iterator[None]:
    descriptor = os.open("/root/locked", os.O_RDWR | os.O_CREAT)
    fcntl.lockf(descriptor, fcntl.LOCK_EX, 10, 5)
    yield
    code = (
        "import fcntl, os; f = os.open('/root/locked', os.O_RDWR);"
        "fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB, 10, 5)"
    )
    assert subprocess.run(["/usr/bin/python3", "-c", code], capture_output=True).returncode == 1


@facility
def open_file_description_lock() -> Iterator[None]:
    descriptor = os.open("/root/ofd", os.O_RDWR | os.O_CREAT)
    lock = struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 0, 0)
    fcntl.fcntl(descriptor, 37, lock)
    yield
    other = os.open("/root/ofd", os.O_RDWR)
    answer = fcntl.fcntl(other, 36, lock)
    assert struct.unpack("hhqqi4x", answer)[0] == fcntl.F_WRLCK


@facility
def removed_working_directory() -> Iterator[None]:
    place = tempfile.mkdtemp(dir="/root")
    os.chdir(place)
    os.rmdir(place)
    yield
    assert os.readlink("/proc/self/cwd").endswith("(deleted)")


@facility
def working_directory() -> Iterator[None]:
    os.chdir("/usr/lib")
    yield
    assert os.getcwd() == "/usr/lib"


@facility
def changed_root() -> Iterator[None]:
    descriptor = os.open("/", os.O_RDONLY)
    os.chroot("/usr")
    yield
    assert Path("/lib/os-release").exists()
    assert not Path("/root").exists()
    os.fchdir(descriptor)
    os.chroot(".")


@facility
def file_mode_mask() -> Iterator[None]:
    os.umask(0o077)
    yield
    assert os.umask(0) == 0o077


@facility
def signals_of_a_descriptor() -> Iterator[None]:
    ours, theirs = socket.socketpair()
    signals: list[int] = []
    signal.signal(signal.SIGUSR2, lambda number, _: signals.append(number))
    fcntl.fcntl(ours, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(ours, 10, signal.SIGUSR2)
    fcntl.fcntl(ours, fcntl.F_SETFL, fcntl.fcntl(ours, fcntl.F_GETFL) | os.O_ASYNC)
    yield
    theirs.send(b"x")
    deadline = time.monotonic() + 5
    while not signals and time.monotonic() < deadline:
        time.sleep(0.01)
    assert signals


@facility
def inotify_watch() -> Iterator[None]:
    descriptor = call(libc.inotify_init1(os.O_NONBLOCK))
    os.mkdir("/root/watched")
    call(libc.inotify_add_watch(descriptor, b"/root/watched", 0x100))
    yield
    Path("/root/watched/new").touch()
    assert b"new" in os.read(descriptor, 4096)


@facility
def inotify_events_in_the_queue() -> Iterator[None]:
    descriptor = call(libc.inotify_init1(os.O_NONBLOCK))
    os.mkdir("/root/queued")
    call(libc.inotify_add_watch(descriptor, b"/root/queued", 0x100))
    Path("/root/queued/new").touch()
    yield
    assert b"new" in os.read(descriptor, 4096)


@facility
def pipe_with_data() -> Iterator[None]:
    reading, writing = os.pipe()
    os.write(writing, b"kept")
    yield
    assert os.read(reading, 9) == b"kept"


@facility
def pipe_size() -> Iterator[None]:
    _, writing = os.pipe()
    fcntl.fcntl(writing, 1031, 1 << 18)
    yield
    assert fcntl.fcntl(writing, 1032) == 1 << 18


@facility
def packet_pipe() -> Iterator[None]:
    reading, writing = os.pipe2(os.O_DIRECT)
    os.write(writing, b"one")
    os.write(writing, b"two")
    yield
    assert (os.read(reading, 99), os.read(reading, 99)) == (b"one", b"two")


@facility
def named_pipe_with_data() -> Iterator[None]:
    os.mkfifo("/root/fifo")
    descriptor = os.open("/root/fifo", os.O_RDWR)
    os.write(descriptor, b"kept")
    yield
    assert os.read(descriptor, 9) == b"kept"


@facility
def pipe_whose_writer_is_gone() -> Iterator[None]:
    reading, writing = os.pipe()
    os.write(writing, b"kept")
    os.close(writing)
    yield
    assert (os.read(reading, 9), os.read(reading, 9)) == (b"kept", b"")


@facility
def event_counter() -> Iterator[None]:
    descriptor = call(libc.eventfd(7, 0))
    yield
    assert os.read(descriptor, 8) == struct.pack("Q", 7)


@facility
def epoll_set() -> Iterator[None]:
    reading, writing = os.pipe()
    poll = select.epoll()
    poll.register(reading, select.EPOLLIN | select.EPOLLET)
    yield
    os.write(writing, b"x")
    assert poll.poll(5) == [(reading, select.EPOLLIN)]


@facility
def signal_descriptor() -> Iterator[None]:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    mask = ctypes.create_string_buffer(128)
    call(libc.sigemptyset(mask))
    call(libc.sigaddset(mask, signal.SIGUSR1))
    descriptor = call(libc.signalfd(-1, mask, 0))
    yield
    os.kill(os.getpid(), signal.SIGUSR1)
    assert os.read(descriptor, 128)[0] == signal.SIGUSR1


@facility
def timer_descriptor() -> Iterator[None]:
    descriptor = call(libc.timerfd_create(time.CLOCK_MONOTONIC, 0))
    spec = struct.pack("qqqq", 3600, 0, 3600, 0)
    call(libc.timerfd_settime(descriptor, 0, spec, None))
    yield
    left = ctypes.create_string_buffer(32)
    call(libc.timerfd_gettime(descriptor, left))
    period, _, seconds, _ = struct.unpack("qqqq", left.raw)
    assert period == 3600
    assert 3000 < seconds <= 3600


@facility
def process_descriptor() -> Iterator[None]:
    child = os.fork()
    if child == 0:
        time.sleep(3600)
    descriptor = os.pidfd_open(child)
    yield
    signal.pidfd_send_signal(descriptor, signal.SIGKILL)
    assert os.waitpid(child, 0)[0] == child
