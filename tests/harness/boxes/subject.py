"""One backend under test, real or fake."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from boxd.backends.interface import Backend, BoxPlan

if TYPE_CHECKING:
    from pathlib import Path

    from tests.harness.boxes.backend import BoxHost


@dataclass
class Subject:
    """One backend under test."""

    backend: Backend
    host: BoxHost | None
    tmp_path: Path
    made: int = 0

    def plan(self) -> BoxPlan:
        """Return a plan of a new box."""
        if self.host is not None:
            return self.host.plan()
        self.made += 1
        return BoxPlan(
            box_id=f"{self.made:032x}",
            hostname="testbox",
            image="test",
            rootfs=self.tmp_path,
            runtime=self.tmp_path,
            run_dir=self.tmp_path,
            cpus=1.0,
            mem_mb=256,
            pids=64,
            egress="all",
        )

    def leftovers(self) -> list[str]:
        """Return the remaining host objects of boxes."""
        return self.host.leftovers() if self.host is not None else []

    async def states(self) -> dict[str, bool]:
        """Return the answer of `list` by box id."""
        return {box.box_id: box.running for box in await self.backend.list()}
