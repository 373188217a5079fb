"""Kinds of mappings and advice, and System V and POSIX objects in their rarer states."""

from __future__ import annotations

import ctypes
import mmap
import os
import resource
import signal
import struct
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tests.integration.boxd.suspension.facilities.program import call, facility, libc, prctl

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MAP_GROWSDOWN, MAP_HUGETLB, MAP_LOCKED, MAP_NORESERVE = 0x100, 0x40000, 0x2000, 0x4000
PRIVATE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
SEM_UNDO, IPC_NOWAIT = 0x1000, 0o4000


def mapped(length: int = 1 << 16, flags: int = PRIVATE) -> int:
    """The address of a new mapping."""
    libc.mmap.restype = ctypes.c_void_p
    place = libc.mmap(None, ctypes.c_size_t(length), 3, flags, -1, ctypes.c_long(0))
    if place == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return int(place)


def flags_of(place: int) -> list[str]:
    """What /proc/self/smaps says of a mapping."""
    part = Path("/proc/self/smaps").read_text().split(f"\n{place:x}-")[1]
    return part.split("VmFlags:")[1].split("\n")[0].split()


def _advice(name: str, advice: int, flag: str) -> None:
    def program() -> Iterator[None]:
        place = mapped()
        call(libc.madvise(ctypes.c_void_p(place), ctypes.c_size_t(1 << 16), advice))
        assert flag in flags_of(place)
        yield
        assert flag in flags_of(place)

    program.__name__ = f"memory_advice_{name}"
    facility(program)


_advice("wipe_on_fork", 18, "wf")
_advice("not_dumped", 16, "dd")
_advice("mergeable", 12, "mg")
_advice("huge_pages", 14, "hg")
_advice("no_huge_pages", 15, "nh")
_advice("random_access", 1, "rr")
_advice("sequential_access", 2, "sr")


def _mapping(name: str, flags: int, flag: str = "") -> None:
    def program() -> Iterator[None]:
        place = mapped(flags=PRIVATE | flags)
        ctypes.memmove(place, b"kept", 4)
        yield
        assert ctypes.string_at(place, 4) == b"kept"
        assert not flag or flag in flags_of(place)

    program.__name__ = name
    facility(program)


_mapping("mapping_that_grows_down", MAP_GROWSDOWN, "gd")
_mapping("mapping_of_huge_pages", MAP_HUGETLB, "ht")
_mapping("mapping_that_is_locked", MAP_LOCKED, "lo")
_mapping("mapping_without_reserve", MAP_NORESERVE, "nr")


@facility
def memory_locked_on_fault() -> Iterator[None]:
    place = mapped()
    call(libc.syscall(325, ctypes.c_void_p(place), ctypes.c_size_t(1 << 16), 1))
    before = flags_of(place)
    yield
    assert "lo" in flags_of(place)
    assert flags_of(place) == before


@facility
def memory_that_is_locked_in_future() -> Iterator[None]:
    """MCL_FUTURE holds for what is mapped after the suspension."""
    resource.setrlimit(resource.RLIMIT_MEMLOCK, resource.getrlimit(resource.RLIMIT_MEMLOCK))
    call(libc.mlockall(2 | 4))
    assert "lo" in flags_of(mapped(4096))
    yield
    assert "lo" in flags_of(mapped(4096))


@facility
def memory_without_access() -> Iterator[None]:
    place = mapped()
    ctypes.memmove(place, b"kept", 4)
    call(libc.mprotect(ctypes.c_void_p(place), ctypes.c_size_t(1 << 16), 0))
    yield
    call(libc.mprotect(ctypes.c_void_p(place), ctypes.c_size_t(1 << 16), 3))
    assert ctypes.string_at(place, 4) == b"kept"


@facility
def code_made_at_run_time() -> Iterator[None]:
    """`mov eax, 42; ret`."""
    place = mapped()
    ctypes.memmove(place, b"\xb8\x2a\x00\x00\x00\xc3", 6)
    call(libc.mprotect(ctypes.c_void_p(place), ctypes.c_size_t(1 << 16), 5))
    function = ctypes.CFUNCTYPE(ctypes.c_int)(place)
    yield
    assert function() == 42


@facility
def memory_with_a_protection_key() -> Iterator[None]:
    key = libc.pkey_alloc(0, 0)
    if key < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    place = mapped()
    call(libc.pkey_mprotect(ctypes.c_void_p(place), ctypes.c_size_t(1 << 16), 3, key))
    before = [line for line in _smaps(place) if line.startswith("ProtectionKey")]
    yield
    assert [line for line in _smaps(place) if line.startswith("ProtectionKey")] == before


def _smaps(place: int) -> list[str]:
    part = Path("/proc/self/smaps").read_text().split(f"\n{place:x}-")[1]
    return part.split("VmFlags:")[0].splitlines()


@facility
def sealed_mapping() -> Iterator[None]:
    """By mseal: nobody unmaps it."""
    place = mapped()
    call(libc.syscall(462, ctypes.c_void_p(place), ctypes.c_size_t(1 << 16), 0))
    yield
    assert libc.munmap(ctypes.c_void_p(place), ctypes.c_size_t(1 << 16)) == -1


@facility
def pages_that_guard() -> Iterator[None]:
    """MADV_GUARD_INSTALL: an access ends the process."""
    place = mapped()
    call(libc.madvise(ctypes.c_void_p(place), ctypes.c_size_t(4096), 102))
    yield
    child = os.fork()
    if child == 0:
        ctypes.string_at(place, 1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGSEGV


@facility
def name_of_memory() -> Iterator[None]:
    place = mapped()
    name = ctypes.create_string_buffer(b"facility")
    prctl(0x53564D41, 0, place, 1 << 16, ctypes.addressof(name))
    assert "[anon:facility]" in Path("/proc/self/maps").read_text()
    yield
    assert "[anon:facility]" in Path("/proc/self/maps").read_text()


@facility
def memory_of_a_parent_and_its_child() -> Iterator[None]:
    """Pages that both have, and one that the child has written."""
    data = bytearray(b"x" * (4 << 20))
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        data[0] = ord("y")
        os.read(reading, 1)
        os._exit(0 if (data[0], data[-1]) == (ord("y"), ord("x")) else 1)
    yield
    os.write(writing, b"x")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert (data[0], data[-1]) == (ord("x"), ord("x"))


@facility
def shared_memory_after_its_file_is_closed() -> Iterator[None]:
    descriptor = os.memfd_create("closed")
    os.ftruncate(descriptor, 4096)
    memory = mmap.mmap(descriptor, 4096)
    os.close(descriptor)
    memory[:4] = b"kept"
    yield
    assert memory[:4] == b"kept"


@facility
def sysv_shared_memory_that_is_removed_at_its_last_use() -> Iterator[None]:
    libc.shmat.restype = ctypes.c_void_p
    segment = call(libc.shmget(0, 4096, 0o1600))
    place = libc.shmat(segment, None, 0)
    ctypes.memmove(place, b"kept", 4)
    call(libc.shmctl(segment, 0, None))
    yield
    assert ctypes.string_at(place, 4) == b"kept"
    call(libc.shmdt(ctypes.c_void_p(place)))
    assert Path("/proc/sysvipc/shm").read_text().count("\n") < 9, Path(
        "/proc/sysvipc/shm"
    ).read_text()
    assert libc.shmat(segment, None, 0) == ctypes.c_void_p(-1).value


@facility
def sysv_semaphore_that_is_undone_at_exit() -> Iterator[None]:
    semaphores = call(libc.semget(0x4B12, 1, 0o1600))
    call(libc.semctl(semaphores, 0, 16, 1))
    child = os.fork()
    if child == 0:
        libc.semop(semaphores, struct.pack("Hhh", 0, -1, SEM_UNDO), 1)
        time.sleep(3600)
    while call(libc.semctl(semaphores, 0, 12)):
        time.sleep(0.01)
    yield
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert call(libc.semctl(semaphores, 0, 12)) == 1


@facility
def sysv_semaphore_with_a_waiter() -> Iterator[None]:
    semaphores = call(libc.semget(0x4B13, 1, 0o1600))
    child = os.fork()
    if child == 0:
        libc.semop(semaphores, struct.pack("Hhh", 0, -1, 0), 1)
        os._exit(8)
    yield
    call(libc.semop(semaphores, struct.pack("Hhh", 0, 1, 0), 1))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 8


@facility
def posix_message_queue() -> Iterator[None]:
    queue = _queue("/facility")
    call(libc.mq_send(queue, b"kept", 4, 3))
    yield
    assert _message(queue) == b"kept"


@facility
def posix_message_queue_that_nobody_has_open() -> Iterator[None]:
    queue = _queue("/closed")
    call(libc.mq_send(queue, b"kept", 4, 3))
    os.close(queue)
    yield
    assert _message(_queue("/closed")) == b"kept"


@facility
def posix_message_queue_with_a_signal() -> Iterator[None]:
    queue = _queue("/notifying")
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    event = ctypes.create_string_buffer(struct.pack("Qii48x", 0, signal.SIGUSR1, 0))
    call(libc.mq_notify(queue, event))
    yield
    call(libc.mq_send(queue, b"x", 1, 0))
    assert signal.SIGUSR1 in signal.sigpending()


def _queue(name: str) -> int:
    attributes = struct.pack("qqqq32x", 0, 8, 64, 0)
    return call(
        libc.mq_open(name.encode(), os.O_RDWR | os.O_CREAT | os.O_NONBLOCK, 0o600, attributes)
    )


def _message(queue: int) -> bytes:
    buffer = ctypes.create_string_buffer(64)
    length = call(libc.mq_receive(queue, buffer, 64, None))
    return buffer.raw[:length]


@facility
def posix_semaphore() -> Iterator[None]:
    libc.sem_open.restype = ctypes.c_void_p
    semaphore = ctypes.c_void_p(libc.sem_open(b"/facility", os.O_CREAT, 0o600, 3))
    yield
    value = ctypes.c_int()
    libc.sem_getvalue(semaphore, ctypes.byref(value))
    assert value.value == 3


def _kept_limits(pairs: dict[int, tuple[int, int]]) -> Callable[[], bool]:
    return lambda: all(resource.getrlimit(kind) == pair for kind, pair in pairs.items())


@facility
def every_resource_limit() -> Iterator[None]:
    kinds = [getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")]
    pairs = {kind: resource.getrlimit(kind) for kind in kinds}
    kept = _kept_limits(pairs)
    yield
    assert kept()
