"""Small files of this host that tell and take the configuration of its network."""

from __future__ import annotations

from pathlib import Path

SYSCTL = Path("/proc/sys/net")


def device(name: str) -> Path:
    """The directory of a network device of this host; it is there while the device is."""
    return Path("/sys/class/net") / name


def read(path: Path) -> str:
    """The text of a file, empty when there is none."""
    try:
        return path.read_text()
    except FileNotFoundError:
        return ""
