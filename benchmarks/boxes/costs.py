"""What the boxes of a service cost on its host: memory by kind of process, and disk space."""

from __future__ import annotations

import os
import statistics
import threading
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from boxd.backends.host.names import HostNames
from boxd.config import Config
from tests.harness.service.processes import memory_of_service, of_service

if TYPE_CHECKING:
    from typing import Self

    from tests.e2e.service import Service

MIB = 1 << 20
SETTLE_S = 2.0
"""Seconds between the last request and a reading."""
READINGS, READING_S = 5, 0.2
"""Number of readings of the host's memory, and seconds between them. Their median counts, because
other programs use memory, too.
"""
SAMPLE_S = 0.05
IMAGES = ("boxes", "memories")
"""Directories with the memory of sleeping boxes, and of snapshots and templates."""


@dataclass(frozen=True)
class Costs:
    """Costs in MiB. The memory of processes is their proportional share of shared pages.

    `host` is the memory that the host cannot give to other programs, including that of the kernel.
    `agents`: all processes in boxes. `helpers`: processes outside of a box that serve one box.
    `drives`: mount processes, one for each drive. `images`: files with the memory of boxes.
    `volume`: used space of the volume of disks.
    """

    host: float
    daemon: float
    agents: float
    helpers: float
    drives: float
    images: float
    volume: float

    @classmethod
    def of(cls, service: Service) -> Self:
        """Return the present costs, after a pause in which the service finishes its work."""
        time.sleep(SETTLE_S)
        names = HostNames(Config(state_dir=service.state_dir).instance, service.state_dir.resolve())
        daemon = service.daemon_pid()
        parents = {process.pid for process in of_service(daemon)}
        kinds = {"agents": 0, "helpers": 0, "drives": 0}
        for process in psutil.process_iter(["pid", "cmdline"]):
            words = " ".join(process.info["cmdline"] or [])
            if kind := _kind(process.info["pid"], words, names, parents):
                kinds[kind] += _share(process.info["pid"])
        disk = os.statvfs(service.state_dir / "disks")
        return cls(
            host=statistics.median(_readings()) / MIB,
            daemon=memory_of_service(daemon) / MIB,
            images=sum(_disk_use(service.state_dir / place) for place in IMAGES) / MIB,
            volume=(disk.f_blocks - disk.f_bfree) * disk.f_frsize / MIB,
            **{kind: size / MIB for kind, size in kinds.items()},
        )

    def per_box(self, before: Costs, boxes: int) -> dict[str, float]:
        """Return the growth since `before`, in MiB for each of the boxes that caused it."""
        return {
            field.name: round((getattr(self, field.name) - getattr(before, field.name)) / boxes, 3)
            for field in fields(self)
        }

    def figures(self) -> dict[str, float]:
        """Return the costs for JSON."""
        return {name: round(value, 1) for name, value in asdict(self).items()}


class Peak:
    """The largest memory use of the host while the context lasts, in MiB."""

    def __init__(self) -> None:
        self.host = 0.0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        """Start to sample."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop."""
        self._end.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._end.wait(SAMPLE_S):
            self.host = max(self.host, _in_use() / MIB)


def _readings() -> list[float]:
    found = []
    for _ in range(READINGS):
        found.append(_in_use())
        time.sleep(READING_S)
    return found


def _in_use() -> float:
    memory = psutil.virtual_memory()
    return float(memory.total - memory.available)


def _kind(pid: int, words: str, names: HostNames, parents: set[int]) -> str:
    """Return the kind of a process; "" if it belongs to no box and no drive."""
    if f"{names.lxcfs}/" in words:
        return "helpers"
    with suppress(OSError, psutil.Error):
        if "box_guest.mount" in words and psutil.Process(pid).ppid() in parents:
            return "drives"
        if f":{names.cgroup_parent}/" in Path(f"/proc/{pid}/cgroup").read_text():
            return "agents"
    return ""


def _share(pid: int) -> int:
    with suppress(OSError, psutil.Error):
        return int(psutil.Process(pid).memory_full_info().pss)
    return 0


def _disk_use(directory: Path) -> int:
    """Return the space of all files below a directory on its own file system."""
    inodes, device = {}, directory.stat().st_dev
    folders = [directory]
    while folders:
        with suppress(OSError), os.scandir(folders.pop()) as entries:
            for entry in entries:
                status = entry.stat(follow_symlinks=False)
                if status.st_dev != device:
                    continue
                inodes[status.st_ino] = status.st_blocks * 512
                if entry.is_dir(follow_symlinks=False):
                    folders.append(Path(entry.path))
    return sum(inodes.values())
