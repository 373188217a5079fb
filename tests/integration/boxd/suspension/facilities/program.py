"""The registry of the programs, and the calls that they share."""

from __future__ import annotations

import ctypes
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

Facility = Callable[[], Iterator[None]]
FACILITIES: dict[str, Facility] = {}
libc = ctypes.CDLL(None, use_errno=True)
LOCALHOST = "127.0.0.1"


def facility(program: Facility) -> Facility:
    """Registers a program."""
    FACILITIES[program.__name__] = program
    return program


def call(result: int) -> int:
    """The result of a C function; OSError when it failed."""
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def status(field: str) -> str:
    """A field of /proc/self/status."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return dict(line.split(":\t", 1) for line in lines)[field]


def prctl(option: int, *arguments: int) -> int:
    """The system call of this name."""
    padded = [ctypes.c_ulong(value) for value in (*arguments, 0, 0, 0, 0)[:4]]
    return call(libc.prctl(option, *padded))


def connected(family: int = socket.AF_INET) -> tuple[socket.socket, socket.socket]:
    """Two ends of a TCP connection."""
    address = LOCALHOST if family == socket.AF_INET else "::1"
    with socket.create_server((address, 0), family=family) as server:
        client = socket.create_connection(server.getsockname()[:2])
        return client, server.accept()[0]
