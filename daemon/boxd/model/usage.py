"""The resource use of a box at its last measurement, and the use of drives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from datetime import datetime


@dataclass(frozen=True, slots=True)
class DriveUse:
    """The content of a drive and its limits. None: no limit."""

    bytes: int
    bytes_limit: int | None
    files: int
    """Files and directories."""
    files_limit: int | None


@dataclass(frozen=True, slots=True)
class Usage:
    """One measurement at `at`. CPU and network counters start with the box's processes.

    `cpu_share` is the share of one CPU since the previous measurement; None for the first one.
    `disk_bytes` is the size of the box's disk without its image and its drive.
    """

    at: datetime
    cpu_s: float
    cpu_share: float | None
    memory_bytes: int
    disk_bytes: int
    pids: int
    net_rx_bytes: int
    net_tx_bytes: int
    oom_kills: int = 0
    """Processes that the kernel killed because the box was out of memory."""
    saved_memory_bytes: int = 0
    """Size of the memory image on the host's disk while the box is suspended."""

    def to_json(self) -> dict[str, Any]:
        """Return the `usage` member of the JSON form of a box."""
        return {
            "at": self.at.isoformat(),
            "cpu_s": round(self.cpu_s, 3),
            "cpu_share": None if self.cpu_share is None else round(self.cpu_share, 3),
            "memory_bytes": self.memory_bytes,
            "disk_bytes": self.disk_bytes,
            "pids": self.pids,
            "net_rx_bytes": self.net_rx_bytes,
            "net_tx_bytes": self.net_tx_bytes,
            "oom_kills": self.oom_kills,
            "saved_memory_bytes": self.saved_memory_bytes,
        }
