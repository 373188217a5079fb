"""Searches and sizes of the memory of processes."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

PIECE = 4 << 20


def times_in_memory(pid: int, text: bytes) -> int:
    """Return how often the writable memory of a process contains a text; counts its environment."""
    count = 0
    with Path(f"/proc/{pid}/maps").open() as maps, Path(f"/proc/{pid}/mem").open("rb") as memory:
        for line in maps:
            words = line.split()
            if not words[1].startswith("rw") or words[-1].startswith("[v"):
                continue
            start, end = (int(word, 16) for word in words[0].split("-"))
            for at in range(start, end, PIECE):
                memory.seek(at)
                with suppress(OSError):
                    count += memory.read(min(PIECE + len(text), end - at)).count(text)
    return count


def resident(pid: int, kind: str = "VmHWM") -> int:
    """Return the maximum memory of a process in bytes, or its present memory (`VmRSS`)."""
    status = Path(f"/proc/{pid}/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith(kind))
    return int(line.split()[1]) * 1024
