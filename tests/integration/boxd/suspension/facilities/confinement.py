"""What a process has given up, and what a box does not let it have: rights, keys, namespaces."""

from __future__ import annotations

import ctypes
import os
import socket
import struct
from pathlib import Path
from typing import TYPE_CHECKING

from tests.integration.boxd.suspension.facilities.program import call, facility, libc, prctl, status

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CAP_CHOWN, CAP_KILL = 0, 5
ADDR_NO_RANDOMIZE = 0x40000
NAMESPACES = {
    "mount": 0x00020000,
    "cgroup": 0x02000000,
    "host_name": 0x04000000,
    "ipc": 0x08000000,
    "user": 0x10000000,
    "process": 0x20000000,
    "network": 0x40000000,
    "time": 0x00000080,
}


@facility
def personality() -> Iterator[None]:
    call(libc.personality(ADDR_NO_RANDOMIZE))
    yield
    assert libc.personality(ctypes.c_ulong(0xFFFFFFFF)) & ADDR_NO_RANDOMIZE


@facility
def ambient_capabilities() -> Iterator[None]:
    head = struct.pack("Ii", 0x20080522, 0)
    data = ctypes.create_string_buffer(24)
    call(libc.capget(head, data))
    effective, permitted, _, *rest = struct.unpack("IIIIII", data.raw)
    rights = 1 << CAP_CHOWN | 1 << CAP_KILL
    call(libc.capset(head, struct.pack("IIIIII", effective, permitted, rights, *rest)))
    prctl(47, 2, CAP_CHOWN)
    yield
    assert (int(status("CapAmb"), 16), int(status("CapInh"), 16)) == (1 << CAP_CHOWN, rights)


@facility
def capabilities_that_are_kept_at_a_change_of_user() -> Iterator[None]:
    prctl(8, 1)
    yield
    assert prctl(7) == 1


@facility
def strict_system_call_filter() -> Iterator[None]:
    """In a child, which may read, write and exit; getpid ends it by SIGKILL."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writing)
        prctl(22, 1)
        os.read(reading, 1)
        os.getpid()
        libc.syscall(60, 0)
    while (Path(f"/proc/{child}/status").read_text()).split("Seccomp:\t")[1][0] != "1":
        pass
    yield
    os.write(writing, b"x")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -9


@facility
def system_call_filter_that_asks_a_program() -> Iterator[None]:
    """SECCOMP_FILTER_FLAG_NEW_LISTENER: a descriptor gets the calls of getpgid."""
    program = struct.pack("HBBI", 0x20, 0, 0, 0) + struct.pack("HBBI", 0x15, 0, 1, 121)
    program += struct.pack("HBBI", 6, 0, 0, 0x7FC00000) + struct.pack("HBBI", 6, 0, 0, 0x7FFF0000)
    buffer = ctypes.create_string_buffer(program)
    head = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", 4, ctypes.addressof(buffer)))
    prctl(38, 1)  # PR_SET_NO_NEW_PRIVS: without it, a filter needs CAP_SYS_ADMIN
    descriptor = call(libc.syscall(317, 1, 8, head))
    yield
    assert os.fstat(descriptor)


@facility
def speculation_control() -> Iterator[None]:
    """PR_SPEC_STORE_BYPASS is off for this process."""
    prctl(53, 0, 4)
    before = status("Speculation_Store_Bypass")
    yield
    assert status("Speculation_Store_Bypass") == before


@facility
def memory_that_is_never_writable_and_executable() -> Iterator[None]:
    prctl(65, 1)
    yield
    assert prctl(66) == 1


@facility
def instruction_cpuid_that_traps() -> Iterator[None]:
    call(libc.syscall(158, 0x1012, 0))
    yield
    assert call(libc.syscall(158, 0x1011, 0)) == 0


@facility
def early_kill_at_memory_errors() -> Iterator[None]:
    prctl(33, 1, 1)
    yield
    assert prctl(34) == 1


@facility
def filter_of_core_files() -> Iterator[None]:
    Path("/proc/self/coredump_filter").write_text("0x7f")
    yield
    assert int(Path("/proc/self/coredump_filter").read_text(), 16) == 0x7F


@facility
def login_identity() -> Iterator[None]:
    before = Path("/proc/self/loginuid").read_text(), Path("/proc/self/sessionid").read_text()
    yield
    assert (
        Path("/proc/self/loginuid").read_text(),
        Path("/proc/self/sessionid").read_text(),
    ) == before


@facility
def process_that_may_trace() -> Iterator[None]:
    """PR_SET_PTRACER."""
    prctl(0x59616D61, os.getppid())
    yield


@facility
def system_calls_that_user_space_dispatches() -> Iterator[None]:
    switch = ctypes.create_string_buffer(1)
    prctl(59, 1, 0, 0, ctypes.addressof(switch))
    yield


@facility
def scheduling_in_a_core_of_its_own() -> Iterator[None]:
    prctl(62, 1, 0, 0, 0)
    yield


@facility
def key_ring() -> Iterator[None]:
    call(libc.syscall(248, b"user", b"name", b"kept", 4, -3))
    yield


@facility
def session_key_ring() -> Iterator[None]:
    call(libc.syscall(250, 1, 0))
    yield


@facility
def memory_policy() -> Iterator[None]:
    """By set_mempolicy."""
    call(libc.syscall(238, 1, None, 0))
    yield


@facility
def realtime_scheduling() -> Iterator[None]:
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(5))
    yield


@facility
def deadline_scheduling() -> Iterator[None]:
    attributes = struct.pack("IIQiIQQQ", 48, 6, 0, 0, 0, 10**7, 10**8, 10**8)
    call(libc.syscall(314, 0, attributes, 0))
    yield


@facility
def nested_cgroup() -> Iterator[None]:
    os.mkdir("/sys/fs/cgroup/memory/nested")
    yield


@facility
def mount_of_its_own() -> Iterator[None]:
    call(libc.mount(b"none", b"/mnt", b"tmpfs", 0, None))
    yield


@facility
def confinement_by_landlock() -> Iterator[None]:
    call(libc.syscall(444, struct.pack("Q", 1), 8, 0))
    yield


def _namespace(kind: int) -> Callable[[], Iterator[None]]:
    def program() -> Iterator[None]:
        call(libc.unshare(kind))
        yield

    return program


def _socket(family: int, kind: int, protocol: int = 0) -> Callable[[], Iterator[None]]:
    def program() -> Iterator[None]:
        socket.socket(family, kind, protocol)
        yield

    return program


def _named(name: str, program: Callable[[], Iterator[None]]) -> None:
    program.__name__ = name
    facility(program)


for _name, _kind in NAMESPACES.items():
    _named(f"{_name}_namespace", _namespace(_kind))
_named("packet_socket", _socket(socket.AF_PACKET, socket.SOCK_RAW, 0x0300))
_named("raw_socket", _socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP))
_named("socket_of_the_hypervisor", _socket(socket.AF_VSOCK, socket.SOCK_STREAM))
_named("bluetooth_socket", _socket(socket.AF_BLUETOOTH, socket.SOCK_RAW))
_named("crypto_socket", _socket(socket.AF_ALG, socket.SOCK_SEQPACKET))
_named("multipath_socket", _socket(socket.AF_INET, socket.SOCK_STREAM, 262))
_named("netlink_socket_of_events", _socket(socket.AF_NETLINK, socket.SOCK_RAW, 15))
