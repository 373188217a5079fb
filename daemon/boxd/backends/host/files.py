"""Small files of the host: network settings, memory, and network devices."""

from __future__ import annotations

from pathlib import Path

SYSCTL = Path("/proc/sys/net")
MEMINFO = Path("/proc/meminfo")
RESERVE_BYTES = 1 << 30
RESERVE_SHARE = 10
"""Memory that boxes leave to the host: RESERVE_BYTES plus 1/RESERVE_SHARE of all memory, but never
more than half of all memory."""


def device(name: str) -> Path:
    """Return the sysfs directory of a network device. It exists while the device exists."""
    return Path("/sys/class/net") / name


def read(path: Path) -> str:
    """Return the text of a file, or "" if it does not exist."""
    try:
        return path.read_text()
    except FileNotFoundError:
        return ""


def memory_for_boxes(meminfo: Path = MEMINFO) -> int:
    """Return the bytes of memory that all boxes together may use."""
    lines = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
    total = int(lines["MemTotal"].split()[0]) * 1024
    return max(total - RESERVE_BYTES - total // RESERVE_SHARE, total // 2)
