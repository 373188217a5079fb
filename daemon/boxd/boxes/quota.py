"""Limits per owner, from tiers.toml. Pure: it is told what there is, and refuses or not."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, fields
from importlib import resources
from typing import TYPE_CHECKING

from boxd.errors import QuotaExceeded
from boxd.model.box import BoxState
from boxd.names.duration import parse_duration

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta

    from boxd.model.box import Box

_MIB = 1024 * 1024
AWAKE = frozenset({BoxState.CREATING, BoxState.RUNNING, BoxState.RESUMING, BoxState.SUSPENDING})
"""States in which a box takes processors and memory of its host."""


@dataclass(frozen=True, slots=True)
class Tier:
    """Limits of one owner; tiers.toml explains each."""

    boxes: int
    running: int
    cpus: float
    mem_mb: int
    disk_mb: int
    drive_mb: int
    drive_files: int
    snapshots: int
    keys: int
    workspaces: int
    deadline_max: timedelta
    deadline_exec: timedelta

    @property
    def drive_bytes(self) -> int | None:
        """Bytes of one drive; None: no limit."""
        return self.drive_mb * _MIB or None

    def check_box(self, boxes: Sequence[Box], box: Box, *, new: bool) -> None:
        """Refuses one more running box (`new`: one that does not exist yet) beside `boxes`."""
        if new:
            _check("boxes per owner", len(boxes) + 1, self.boxes, "remove one: rm NAME")
            _check("MiB of disk per box", box.disk_mb, self.disk_mb, "ask for a smaller flavor")
        awake = [one for one in boxes if one.state in AWAKE]
        remedy = "remove one: rm NAME"
        _check("running boxes per owner", len(awake) + 1, self.running, remedy)
        _check(
            "CPUs of running boxes per owner",
            sum(one.cpus for one in awake) + box.cpus,
            self.cpus,
            remedy,
        )
        _check(
            "MiB of memory of running boxes per owner",
            sum(one.mem_mb for one in awake) + box.mem_mb,
            self.mem_mb,
            remedy,
        )

    def check_snapshots(self, present: int) -> None:
        """Refuses one more snapshot."""
        remedy = "remove one: snapshot rm BOX NAME"
        _check("snapshots per owner", present + 1, self.snapshots, remedy)

    def check_keys(self, present: int) -> None:
        """Refuses one more API key."""
        _check("API keys per owner", present + 1, self.keys, "remove one: apikeys rm NAME")

    def check_workspaces(self, present: int) -> None:
        """Refuses one more workspace."""
        _check("workspaces per owner", present + 1, self.workspaces, "use an existing one")


def load_tiers() -> dict[str, Tier]:
    """The shipped tiers; ValueError names what is missing or unknown in the file."""
    text = (resources.files("boxd.boxes") / "tiers.toml").read_text(encoding="utf-8")
    return {name: _tier(name, raw) for name, raw in tomllib.loads(text).items()}


def _tier(name: str, raw: dict[str, object]) -> Tier:
    wanted = {field.name for field in fields(Tier)}
    if raw.keys() != wanted:
        raise ValueError(f"tier {name}: wrong or missing limits {sorted(raw.keys() ^ wanted)}")
    values = {
        key: parse_duration(str(value)) if key.startswith("deadline") else value
        for key, value in raw.items()
    }
    return Tier(**values)  # type: ignore[arg-type]  # the contract test reads every shipped tier


def _check(limit: str, wanted: float, allowed: float, remedy: str) -> None:
    if wanted > allowed:
        raise QuotaExceeded(f"limit reached: {allowed:g} {limit}; {remedy}")
