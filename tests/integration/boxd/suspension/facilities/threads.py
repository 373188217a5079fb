"""Threads, and what the kernel has of them: futexes, barriers, tables that they share or not."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import signal
import struct
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tests.integration.boxd.suspension.facilities.program import call, facility, libc, prctl

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CLONE_FS, CLONE_FILES = 0x200, 0x400
MEMBARRIER = 324
REGISTER_PRIVATE_EXPEDITED, PRIVATE_EXPEDITED = 16, 8


class Worker:
    """A thread that runs one step at once, and another step on request."""

    def __init__(self, first: Callable[[], object], then: Callable[[], object]) -> None:
        self._first, self._then = first, then
        self._begun, self._go = threading.Event(), threading.Event()
        self._result: object = None
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()
        assert self._begun.wait(10)

    def _work(self) -> None:
        self._first()
        self._begun.set()
        self._go.wait()
        self._result = self._then()

    def result(self) -> object:
        """What the second step returns."""
        self._go.set()
        self._thread.join(10)
        return self._result


@facility
def restartable_sequences() -> Iterator[None]:
    """The C library registers one for each thread. The kernel refuses another one with EINVAL."""
    area = ctypes.create_string_buffer(64)
    place = (ctypes.addressof(area) + 31) & ~31

    def register() -> int:
        libc.syscall(334, ctypes.c_void_p(place), 32, 0, 0x53053053)
        return ctypes.get_errno()

    before = register()
    yield
    assert before in (errno.EINVAL, errno.EBUSY)
    assert register() == before


@facility
def robust_lock_of_a_process_that_dies() -> Iterator[None]:
    memory = mmap.mmap(-1, 4096)
    lock = ctypes.byref(ctypes.c_char.from_buffer(memory, 64))
    attributes = ctypes.create_string_buffer(16)
    libc.pthread_mutexattr_init(attributes)
    libc.pthread_mutexattr_setrobust(attributes, 1)
    libc.pthread_mutexattr_setpshared(attributes, 1)
    libc.pthread_mutex_init(lock, attributes)
    child = os.fork()
    if child == 0:
        libc.pthread_mutex_lock(lock)
        memory[0] = 1
        time.sleep(3600)
    while not memory[0]:
        time.sleep(0.01)
    yield
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert libc.pthread_mutex_trylock(lock) == errno.EOWNERDEAD


@facility
def lock_that_hands_on_priority() -> Iterator[None]:
    lock = ctypes.create_string_buffer(64)
    attributes = ctypes.create_string_buffer(16)
    libc.pthread_mutexattr_init(attributes)
    libc.pthread_mutexattr_setprotocol(attributes, 1)
    libc.pthread_mutex_init(lock, attributes)
    libc.pthread_mutex_lock(lock)
    worker = Worker(lambda: None, lambda: libc.pthread_mutex_lock(lock))
    yield
    assert libc.pthread_mutex_unlock(lock) == 0
    assert worker.result() == 0


@facility
def waiter_of_a_futex() -> Iterator[None]:
    memory = mmap.mmap(-1, 4096)
    word = ctypes.c_int.from_buffer(memory)
    child = os.fork()
    if child == 0:
        while word.value == 0:
            libc.syscall(202, ctypes.byref(word), 0, 0, None)
        os._exit(word.value)
    yield
    word.value = 5
    libc.syscall(202, ctypes.byref(word), 1, 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5


@facility
def memory_barrier_registration() -> Iterator[None]:
    call(libc.syscall(MEMBARRIER, REGISTER_PRIVATE_EXPEDITED, 0))
    yield
    call(libc.syscall(MEMBARRIER, PRIVATE_EXPEDITED, 0))


@facility
def thread_with_other_rights() -> Iterator[None]:
    """One thread alone has no effective capabilities."""
    head = struct.pack("Ii", 0x20080522, 0)
    data = ctypes.create_string_buffer(24)
    call(libc.capget(head, data))
    empty = struct.pack("IIIIII", 0, *struct.unpack("IIIIII", data.raw)[1:])

    def rights() -> str:
        return _thread_status("CapEff")

    worker = Worker(lambda: call(libc.capset(head, empty)), rights)
    yield
    assert int(str(worker.result()), 16) == 0
    assert int(_thread_status("CapEff"), 16) != 0


@facility
def thread_with_its_own_filter() -> Iterator[None]:
    """One thread alone may not call getpgid."""
    program = struct.pack("HBBI", 0x20, 0, 0, 0) + struct.pack("HBBI", 0x15, 0, 1, 121)
    program += struct.pack("HBBI", 6, 0, 0, 0x50001) + struct.pack("HBBI", 6, 0, 0, 0x7FFF0000)
    buffer = ctypes.create_string_buffer(program)
    head = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", 4, ctypes.addressof(buffer)))

    def ask() -> int | None:
        try:
            os.getpgid(0)
        except PermissionError as error:
            return error.errno
        return 0

    def confine() -> None:
        prctl(38, 1)  # PR_SET_NO_NEW_PRIVS: without it, a filter needs CAP_SYS_ADMIN
        prctl(22, 2, ctypes.addressof(head))

    worker = Worker(confine, ask)
    yield
    assert (ask(), worker.result()) == (0, errno.EPERM)


@facility
def thread_with_its_own_descriptors() -> Iterator[None]:
    """One thread has closed a descriptor for itself alone."""
    descriptor = os.open("/etc/hostname", os.O_RDONLY)

    def part() -> None:
        call(libc.unshare(CLONE_FILES))
        os.close(descriptor)

    def is_open() -> bool:
        return bool(libc.fcntl(descriptor, 1) >= 0)

    worker = Worker(part, is_open)
    yield
    assert (is_open(), worker.result()) == (True, False)


@facility
def thread_with_its_own_directory() -> Iterator[None]:
    def part() -> None:
        call(libc.unshare(CLONE_FS))
        os.chdir("/usr/lib")

    worker = Worker(part, os.getcwd)
    before = os.getcwd()
    yield
    assert (os.getcwd(), worker.result()) == (before, "/usr/lib")


@facility
def thread_whose_first_thread_has_ended() -> Iterator[None]:
    """In a child: its first thread exits, and another one goes on."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        threading.Thread(target=_answer, args=(writing,)).start()
        libc.syscall(60, 0)
    state = Path(f"/proc/{child}/stat")
    while state.read_text().rpartition(")")[2].split()[0] != "Z":
        time.sleep(0.01)
    yield
    os.kill(child, signal.SIGUSR1)
    os.close(writing)
    assert os.read(reading, 9) == b"x"


def _answer(writing: int) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    signal.sigwait({signal.SIGUSR1})
    os.write(writing, b"x")
    os._exit(0)


@facility
def processes_with_one_table_of_descriptors() -> Iterator[None]:
    child = call(libc.syscall(56, CLONE_FILES | signal.SIGCHLD, 0, 0, 0, 0))
    if child == 0:
        time.sleep(3600)
    yield
    descriptor = os.open("/etc/hostname", os.O_RDONLY)
    assert os.readlink(f"/proc/{child}/fd/{descriptor}") == "/etc/hostname"


@facility
def processes_with_one_directory() -> Iterator[None]:
    child = call(libc.syscall(56, CLONE_FS | signal.SIGCHLD, 0, 0, 0, 0))
    if child == 0:
        time.sleep(3600)
    yield
    os.chdir("/usr/lib")
    assert os.readlink(f"/proc/{child}/cwd") == "/usr/lib"


@facility
def segment_descriptor_table() -> Iterator[None]:
    """By modify_ldt: one segment."""
    entry = struct.pack("IIII", 0, 0x1000, 0xFFFFF, 0x51)
    assert call(libc.syscall(154, 1, entry, len(entry))) == 0
    yield
    table = ctypes.create_string_buffer(64)
    assert call(libc.syscall(154, 0, table, 64)) >= 8


@facility
def rounding_of_floating_point() -> Iterator[None]:
    libm = ctypes.CDLL("libm.so.6")
    libm.fesetround(0xC00)
    yield
    assert libm.fegetround() == 0xC00


def _thread_status(field: str) -> str:
    lines = Path("/proc/thread-self/status").read_text().splitlines()
    return dict(line.split(":\t", 1) for line in lines)[field]
