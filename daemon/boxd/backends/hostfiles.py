"""Small files of this host that tell what it has, and take the configuration of its network."""

from __future__ import annotations

from pathlib import Path

SYSCTL = Path("/proc/sys/net")
MEMINFO = Path("/proc/meminfo")
RESERVE_BYTES = 1 << 30
RESERVE_SHARE = 10
"""Bytes of memory that boxes leave to the host: so many, and one part in so many of all of it, but
never more than half."""


def device(name: str) -> Path:
    """The directory of a network device of this host; it is there while the device is."""
    return Path("/sys/class/net") / name


def read(path: Path) -> str:
    """The text of a file, empty when there is none."""
    try:
        return path.read_text()
    except FileNotFoundError:
        return ""


def memory_for_boxes(meminfo: Path = MEMINFO) -> int:
    """Bytes of this host's memory that all boxes may use together."""
    lines = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
    total = int(lines["MemTotal"].split()[0]) * 1024
    return max(total - RESERVE_BYTES - total // RESERVE_SHARE, total // 2)
