"""Estimates the size on disk of a frozen box's memory image, before CRIU writes it.

CRIU writes three things that the memory figure of a cgroup does not contain, or counts only once:

- the content of open files without a name ("ghost files"), up to the size of the box's disk;
- private pages that processes share after a fork: once for each process;
- pages in swap.

The processes are frozen, so the figures stay true until the dump. Files in flight in a socket are
not visible here. `Disk.require_room` ends a dump that needs more space than available.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from boxd.backends.host import mounts

if TYPE_CHECKING:
    from collections.abc import Iterable

_GONE = " (deleted)"
_BLOCK = 512
_KIB = 1024


@dataclass(frozen=True, slots=True)
class ImageSize:
    """Bytes of an image: `memory` of processes, and `files` that are open and have no name."""

    memory: int
    files: int

    @property
    def total(self) -> int:
        """The bytes of the whole image."""
        return self.memory + self.files


def estimate(pids: Iterable[int], cgroup_bytes: int) -> ImageSize:
    """Estimate the image of a frozen box; `cgroup_bytes` is the memory usage of its cgroup."""
    private = 0
    sizes: dict[tuple[int, int], int] = {}
    in_memory = {_device_of_memory_files()}
    for pid in pids:
        with suppress(OSError):  # the process has ended, or is a zombie
            process = Path(f"/proc/{pid}")
            private += private_bytes((process / "status").read_text(errors="replace"))
            in_memory |= memory_devices(mounts.table(process / "mountinfo"))
            sizes |= _removed_files(process)
    files = sum(size for (device, _), size in sizes.items() if device not in in_memory)
    return ImageSize(max(cgroup_bytes, private), files)


def private_bytes(status: str) -> int:
    """Return the bytes of private pages in memory and swap, from the text of /proc/PID/status."""
    fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    return sum(_kib(fields.get(name, "0 kB")) for name in ("RssAnon", "VmSwap"))


def memory_devices(mountinfo: str) -> set[int]:
    """Return the devices of tmpfs, whose files the cgroup already counts as memory."""
    devices = set()
    for row in mounts.rows(mountinfo):
        if row[row.index("-") + 1] == "tmpfs":
            major, minor = row[2].split(":")
            devices.add(os.makedev(int(major), int(minor)))
    return devices


def _device_of_memory_files() -> int:
    """Return the kernel's one device for all files of memfd_create and System V shared memory."""
    descriptor = os.memfd_create("device")
    try:
        return os.fstat(descriptor).st_dev
    finally:
        os.close(descriptor)


def _kib(field: str) -> int:
    return int(field.split()[0]) * _KIB


def _removed_files(process: Path) -> dict[tuple[int, int], int]:
    """Return the bytes on disk of each file without a name that a process has open or mapped."""
    sizes = {}
    for place in (*_entries(f"{process}/fd"), *_mapped(process)):
        with suppress(OSError):
            if not os.readlink(place).endswith(_GONE):
                continue
            status = os.stat(place)
            if stat.S_ISREG(status.st_mode) and not status.st_nlink:
                sizes[status.st_dev, status.st_ino] = status.st_blocks * _BLOCK
    return sizes


def _mapped(process: Path) -> Iterable[str]:
    """Return links to all mapped files, if one of them has no name."""
    if _GONE in (process / "maps").read_text(errors="replace"):
        return _entries(f"{process}/map_files")
    return ()


def _entries(directory: str) -> Iterable[str]:
    return [f"{directory}/{name}" for name in os.listdir(directory)]
