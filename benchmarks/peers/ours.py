"""The mount process of this project."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from benchmarks.peers.mounted import Mounted

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Sequence
    from pathlib import Path

    from wrkfs.config import VolumeConfig

OPTIONS: tuple[str, ...] = ("--local-locks",)
"""Additional options of our mount: those of the mount that boxes use."""


class Ours(Mounted):
    """A mount of a volume. A volume may have several."""

    def __init__(self, volume: VolumeConfig, directory: Path, name: str = "ours") -> None:
        super().__init__(directory, name)
        self._journals = directory / f"{name}.journals"
        self._credentials = directory / f"{name}.credentials"
        self._credentials.touch(mode=0o600)
        self._credentials.write_text(volume.to_json(), encoding="utf-8")

    def command(self) -> Sequence[str]:
        """Return the command of the mount."""
        module = [sys.executable, "-m", "box_guest.mount"]
        files = ["--journal", str(self._journals), "--credentials", str(self._credentials)]
        return [*module, *OPTIONS, *files, str(self.path)]

    def end(self, process: subprocess.Popen[bytes]) -> None:
        """Send SIGTERM: the mount process flushes and unmounts."""
        process.terminate()
