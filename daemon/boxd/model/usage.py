"""What a box used of its host, as it was measured last, and what drives hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from datetime import datetime


@dataclass(frozen=True, slots=True)
class DriveUse:
    """What a drive holds, and may hold at most (None: no limit)."""

    bytes: int
    bytes_limit: int | None
    files: int
    """Files and directories."""
    files_limit: int | None


@dataclass(frozen=True, slots=True)
class Usage:
    """Measured at `at`. CPU seconds and network bytes count from the start of the box's processes.

    `cpu_share` is the part of one CPU since the measurement before, None at the first one; what
    the box keeps on its disk is `disk_bytes`, beside its image and its drive.
    """

    at: datetime
    cpu_s: float
    cpu_share: float | None
    memory_bytes: int
    disk_bytes: int
    pids: int
    net_rx_bytes: int
    net_tx_bytes: int

    def to_json(self) -> dict[str, Any]:
        """As it stands in the JSON form of a box."""
        return {
            "at": self.at.isoformat(),
            "cpu_s": round(self.cpu_s, 3),
            "cpu_share": None if self.cpu_share is None else round(self.cpu_share, 3),
            "memory_bytes": self.memory_bytes,
            "disk_bytes": self.disk_bytes,
            "pids": self.pids,
            "net_rx_bytes": self.net_rx_bytes,
            "net_tx_bytes": self.net_tx_bytes,
        }
