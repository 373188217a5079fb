"""Which process a session belongs to, so that one that is known to be dead is fenced at once.

Without that, what a killed mount kept by lease is waited for until its session expires.
"""

from __future__ import annotations

import os
from pathlib import Path

PROC = Path("/proc")
START_FIELD = 22
"""Field of /proc/PID/stat that tells when a process began; see proc(5)."""


def identity(pid: int | None = None) -> str:
    """`boot/namespace/pid/start` of this process (or another one of its namespace).

    `boot/namespace` tells the kernel and the PID namespace, in which `pid` means something.
    OSError: there is no such process.
    """
    pid = os.getpid() if pid is None else pid
    boot = (PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    namespace = os.readlink(PROC / "self/ns/pid").strip("pid:[]")
    fields = (PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
    if fields[0] in (b"Z", b"X"):
        raise ProcessLookupError(pid)
    return f"{boot}/{namespace}/{pid}/{int(fields[START_FIELD - 3])}"


def is_dead(other: str) -> bool:
    """Whether the process of an identity has surely ended: only of those that can be seen here."""
    parts = other.split("/")
    if len(parts) != 4 or not parts[2].isdecimal() or len(parts[2]) > 10:
        return False
    if parts[:2] != identity().split("/")[:2]:
        return False
    try:
        return identity(int(parts[2])) != other
    except (FileNotFoundError, ProcessLookupError):
        return True
    except OSError:
        return False
