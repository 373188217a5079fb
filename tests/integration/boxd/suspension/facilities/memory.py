"""Memory of processes, and what they share by System V and POSIX."""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import struct
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tests.integration.boxd.suspension.facilities.program import (
    call,
    facility,
    libc,
    status,
)

if TYPE_CHECKING:
    from collections.abc import Iterator


@facility
def private_memory() -> Iterator[None]:
    memory = mmap.mmap(-1, 1 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory[4096:4100] = b"kept"
    yield
    assert memory[4096:4100] == b"kept"


@facility
def shared_memory_of_two_processes() -> Iterator[None]:
    memory = mmap.mmap(-1, 4096)
    child = os.fork()
    if child == 0:
        while not memory[0]:
            time.sleep(0.02)
        memory[1] = 7
        os._exit(0)
    yield
    memory[0] = 1
    os.waitpid(child, 0)
    assert memory[1] == 7


@facility
def shared_file_mapping() -> Iterator[None]:
    with tempfile.NamedTemporaryFile(dir="/root") as file:
        file.write(b"x" * 4096)
        file.flush()
        memory = mmap.mmap(file.fileno(), 4096)
        yield
        memory[0] = ord("y")
        assert os.pread(file.fileno(), 1, 0) == b"y"


@facility
def private_file_mapping() -> Iterator[None]:
    with tempfile.TemporaryFile(dir="/root") as file:
        file.write(b"x" * 4096)
        file.flush()
        memory = mmap.mmap(file.fileno(), 4096, mmap.MAP_PRIVATE)
        memory[0] = ord("y")
        yield
        assert (memory[0], os.pread(file.fileno(), 1, 0)) == (ord("y"), b"x")


@facility
def memory_protection() -> Iterator[None]:
    memory = mmap.mmap(-1, 8192, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    place = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    call(libc.mprotect(ctypes.c_void_p(place), 4096, mmap.PROT_READ))
    yield
    lines = Path("/proc/self/maps").read_text().splitlines()
    assert any(line.startswith(f"{place:x}-{place + 4096:x} r--p") for line in lines)


@facility
def memory_advice() -> Iterator[None]:
    memory = mmap.mmap(-1, 1 << 16, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_DONTFORK)
    place = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    yield
    parts = Path("/proc/self/smaps").read_text().split(f"{place:x}-")[1]
    flags = parts.split("VmFlags:")[1].split("\n")[0].split()
    assert "dc" in flags


@facility
def locked_memory() -> Iterator[None]:
    memory = mmap.mmap(-1, 16384, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    place = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    call(libc.mlock(ctypes.c_void_p(place), 16384))
    before = status("VmLck")
    yield
    assert status("VmLck") == before


@facility
def memory_file() -> Iterator[None]:
    descriptor = os.memfd_create("name")
    os.write(descriptor, b"kept")
    yield
    assert os.pread(descriptor, 4, 0) == b"kept"


@facility
def sealed_memory_file() -> Iterator[None]:
    descriptor = os.memfd_create("name", os.MFD_ALLOW_SEALING)
    os.write(descriptor, b"kept")
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW)
    yield
    assert fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) == fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW


@facility
def program_break() -> Iterator[None]:
    libc.sbrk.restype = ctypes.c_void_p
    before = libc.sbrk(0)
    yield
    assert libc.sbrk(0) == before


@facility
def protection_key() -> Iterator[None]:
    key = libc.pkey_alloc(0, 0)
    yield
    assert key == -1 or libc.pkey_free(key) == 0


@facility
def sysv_shared_memory() -> Iterator[None]:
    libc.shmat.restype = ctypes.c_void_p
    segment = call(libc.shmget(0x4B01, 4096, 0o1600))
    place = libc.shmat(segment, None, 0)
    ctypes.memmove(place, b"kept", 4)
    yield
    assert ctypes.string_at(place, 4) == b"kept"
    assert call(libc.shmget(0x4B01, 4096, 0)) == segment


@facility
def sysv_semaphore() -> Iterator[None]:
    semaphores = call(libc.semget(0x4B02, 2, 0o1600))
    call(libc.semctl(semaphores, 1, 16, 5))
    yield
    assert call(libc.semctl(semaphores, 1, 12)) == 5


@facility
def sysv_message_queue() -> Iterator[None]:
    queue = call(libc.msgget(0x4B03, 0o1600))
    call(libc.msgsnd(queue, struct.pack("l4s", 3, b"kept"), 4, 0))
    yield
    buffer = ctypes.create_string_buffer(16)
    assert call(libc.msgrcv(queue, buffer, 4, 0, 0o4000)) == 4
    assert buffer.raw[:12] == struct.pack("l4s", 3, b"kept")


@facility
def posix_shared_memory() -> Iterator[None]:
    path = Path("/dev/shm/facility")
    path.write_bytes(b"kept")
    yield
    assert path.read_bytes() == b"kept"
