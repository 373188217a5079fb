"""Stores the backends' records of boxes: `box.json` in each box's directory."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from boxd.backends.interface import BoxPlan
from boxd.errors import NotFound, Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from boxd.backends.host.names import HostNames

_log = logging.getLogger(__name__)

PLAIN = "plain"
"""Kind of disk of boxes whose record names none, because an older release wrote it."""


@dataclass(frozen=True, slots=True)
class Record:
    """The parameters and addresses of a box, as `start` needs them."""

    slot: int
    plan: BoxPlan
    disk: str = PLAIN
    """The kind of the box's disk."""

    def dump(self) -> str:
        """Encode the record as JSON."""
        plan = {k: str(v) if isinstance(v, Path) else v for k, v in asdict(self.plan).items()}
        return json.dumps({"slot": self.slot, "plan": plan, "disk": self.disk}, indent=1)

    @classmethod
    def load(cls, text: str) -> Record:
        """Decode a record of `dump`. Raises ValueError with the reason if it is invalid."""
        try:
            return cls._load(json.loads(text))
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"it is incomplete: {error!r}") from error

    @classmethod
    def _load(cls, data: dict[str, Any]) -> Record:
        plan: dict[str, Any] = data["plan"]
        unknown = plan.keys() - {field.name for field in fields(BoxPlan)}
        if unknown:
            names = ", ".join(sorted(unknown))
            raise ValueError(f"a newer release wrote it; this one does not know {names}")
        for name in ("rootfs", "runtime", "run_dir"):
            plan[name] = None if plan[name] is None else Path(plan[name])
        plan.setdefault("image", "")  # records of older releases have no image
        return cls(data["slot"], BoxPlan(**plan), data.get("disk", PLAIN))


class Records:
    """The records of one installation."""

    def __init__(self, names: HostNames) -> None:
        self._names = names
        self._logged: set[str] = set()

    def all(self) -> Iterator[Record]:
        """Yield every readable record, sorted by id. Unreadable ones are logged once."""
        for box_id in self.ids():
            try:
                record = self.find(box_id)
            except Unavailable as error:
                if box_id not in self._logged:
                    _log.error("%s", error, extra={"box": box_id})
                self._logged.add(box_id)
                continue
            if record is not None:
                yield record

    def ids(self) -> list[str]:
        """Return the sorted ids of all boxes with a record."""
        return sorted(path.parent.name for path in self._names.boxes_dir.glob("*/box.json"))

    def find(self, box_id: str) -> Record | None:
        """Return a box's record, or None. Raises Unavailable if the record is unreadable."""
        path = self._names.paths(box_id).record
        try:
            return Record.load(path.read_text())
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise Unavailable(
                f"the record of the box, {path}, cannot be read: {error}; the box's disk is kept: "
                "restore the file from a copy, or remove the box"
            ) from error

    def get(self, box_id: str) -> Record:
        """Return a box's record. Raises NotFound."""
        record = self.find(box_id)
        if record is None:
            raise NotFound(f"the backend has no box {box_id}")
        return record

    async def put(self, record: Record) -> None:
        """Write a record. After a power loss, the old or the new record is complete."""
        path = self._names.paths(record.plan.box_id).record
        await asyncio.to_thread(write, path, record.dump(), durable=True)


def write(path: Path, text: str, *, durable: bool = False) -> None:
    """Replace a file atomically.

    With `durable`, the file and its directory survive a power loss once this returns.
    """
    temporary = path.with_name(f"{path.name}.new")
    with temporary.open("w") as file:
        file.write(text)
        if durable:
            file.flush()
            os.fsync(file.fileno())
    temporary.replace(path)
    if durable:
        for directory in (path.parent, path.parent.parent):
            _sync(directory)


def _sync(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
