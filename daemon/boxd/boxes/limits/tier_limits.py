"""The limits of each tier, from tiers.toml. Pure functions: callers pass in what exists."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, fields
from importlib import resources
from typing import TYPE_CHECKING, Any

from boxd.errors import BadName, QuotaExceeded, Unavailable
from boxd.model.box import BoxState
from boxd.names.duration import parse_duration
from boxd.names.words import is_name, shown

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta
    from pathlib import Path

    from boxd.model.box import Box

TIERS_FILE = "tiers.toml"
"""Shipped with the package. The operator's file is in the state directory."""
DEFAULT_TIER = "default"
"""The tier of owners without an assignment. Its limits apply wherever another tier has none."""
_FEWER_AWAKE = "suspend one: suspend NAME, or remove one: rm NAME"
_OF_DRIVES = frozenset({"drive_mb", "drive_files"})
_MIB = 1024 * 1024
RUNNING_PER_SOURCE = 50
"""Maximum number of running boxes that were started from one address, over all owners."""
AWAKE = frozenset({BoxState.CREATING, BoxState.RUNNING, BoxState.RESUMING, BoxState.SUSPENDING})
"""States in which a box uses processors and memory of its host."""


@dataclass(frozen=True, slots=True)
class Tier:
    """Limits of one owner. tiers.toml explains each limit and defines the tier's `name`."""

    name: str
    boxes: int
    running: int
    cpus: float
    mem_mb: int
    disk_mb: int
    drive_mb: int
    drive_files: int
    snapshots: int
    keys: int
    shares: int
    workspaces: int
    delegations: int
    deadline_max: timedelta
    deadline_exec: timedelta

    @property
    def drive_bytes(self) -> int | None:
        """Maximum size of one drive in bytes; None: no limit."""
        return self.drive_mb * _MIB or None

    def check_box(self, boxes: Sequence[Box], box: Box, *, new: bool) -> None:
        """Check that one more box may run; `boxes` are the owner's others.

        `new`: the box has no row yet. Raises QuotaExceeded.
        """
        if new:
            _check("boxes per owner", len(boxes) + 1, self.boxes, "remove one: rm NAME")
            _check("MiB of disk per box", box.disk_mb, self.disk_mb, "ask for a smaller flavor")
        awake = [one for one in boxes if one.state in AWAKE]
        remedy = _FEWER_AWAKE
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
        """Raise QuotaExceeded if the owner may have no further snapshot."""
        remedy = "remove one: snapshot rm BOX NAME"
        _check("snapshots per owner", present + 1, self.snapshots, remedy)

    def check_keys(self, present: int) -> None:
        """Raise QuotaExceeded if the owner may have no further API key."""
        _check("API keys per owner", present + 1, self.keys, "remove one: apikeys rm NAME")

    def check_shares(self, present: int) -> None:
        """Raise QuotaExceeded if the owner may have no further share."""
        _check("shares per owner", present + 1, self.shares, "remove one: share rm ID")

    def check_workspaces(self, present: int) -> None:
        """Raise QuotaExceeded if the owner may have no further workspace."""
        _check(
            "workspaces per owner",
            present + 1,
            self.workspaces,
            "use one of them, or remove one: ws rm NAME",
        )

    def check_delegations(self, present: int) -> None:
        """Raise QuotaExceeded if the owner may have no further delegated task."""
        remedy = "wait for one of them, or end it"
        _check("delegated tasks at once per owner", present + 1, self.delegations, remedy)


def load_tiers(own: Path | None = None) -> dict[str, Tier]:
    """Return the shipped tiers, merged with the operator's file `own` if it exists.

    The operator's file contains only the limits that differ. Raises Unavailable, which names the
    file and its error.
    """
    shipped = (resources.files("boxd.boxes.limits") / TIERS_FILE).read_text(encoding="utf-8")
    if own is None or not own.exists():
        return parse_tiers(shipped)
    try:
        return parse_tiers(shipped, own.read_text(encoding="utf-8"))
    except (OSError, ValueError, BadName) as error:
        raise Unavailable(f"cannot use the limits in {own}: {error}") from None


def parse_tiers(shipped: str, own: str = "") -> dict[str, Tier]:
    """Return the tiers of tiers.toml, merged with those of the operator's text.

    The operator's text may add tiers. Raises ValueError, or BadName for a duration.
    """
    tiers = tomllib.loads(shipped)
    for name, limits in tomllib.loads(own).items():
        if not isinstance(limits, dict):
            raise ValueError(f"{name!r} is outside of a tier; move it below [default]")
        if not is_name(name):
            raise ValueError(f"{shown(name)} cannot be a tier: use a-z, 0-9 and '-'")
        tiers[name] = tiers.get(name, {}) | limits
    for name, limits in tiers.items():
        if name != DEFAULT_TIER and (drive := sorted(limits.keys() & _OF_DRIVES)):
            raise ValueError(
                f"{name}.{drive[0]}: the limits of [{DEFAULT_TIER}] apply to all drives"
            )
    return {name: _tier(name, tiers[DEFAULT_TIER] | limits) for name, limits in tiers.items()}


def _tier(name: str, limits: dict[str, object]) -> Tier:
    limit_names = {field.name for field in fields(Tier)} - {"name"}
    if limits.keys() != limit_names:
        unknown = sorted(limits.keys() - limit_names) or sorted(limit_names - limits.keys())
        raise ValueError(
            f"tier {name}: {unknown[0]!r} is not a limit; limits: {', '.join(sorted(limit_names))}"
        )
    values: dict[str, Any] = {key: _limit(f"{name}.{key}", limits[key]) for key in limit_names}
    return Tier(name=name, **values)


def _limit(name: str, value: object) -> float | timedelta:
    """Return the value of a limit: a number, or a duration for a deadline."""
    key = name.partition(".")[2]
    if key.startswith("deadline"):
        return parse_duration(str(value), name)
    kinds = (int, float) if key == "cpus" else (int,)
    least = 0 if key.startswith("drive") else 1
    if isinstance(value, bool) or not isinstance(value, kinds) or value < least:
        raise ValueError(f"{name}: {value!r} is not a number of {least} or more")
    return value


def check_source(present: int, tier: Tier) -> None:
    """Raise QuotaExceeded if too many boxes run from a source.

    An owner may always run as many boxes as its tier allows.
    """
    allowed = max(RUNNING_PER_SOURCE, tier.running)
    _check("running boxes from your address", present + 1, allowed, _FEWER_AWAKE)


def _check(limit: str, required: float, allowed: float, remedy: str) -> None:
    if required > allowed:
        raise QuotaExceeded(f"limit reached: {allowed:g} {limit}; {remedy}")
