"""What the runc backend keeps of a box: `box.json` in the box's directory."""

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

    from boxd.backends.hostnames import HostNames

_log = logging.getLogger(__name__)

PLAIN = "plain"
"""The kind of disk of boxes of releases that knew no other."""


@dataclass(frozen=True, slots=True)
class Record:
    """What `start` needs, and which addresses are the box's."""

    slot: int
    plan: BoxPlan
    disk: str = PLAIN
    """The kind of disk that the box has."""

    def dump(self) -> str:
        """As JSON."""
        plan = {k: str(v) if isinstance(v, Path) else v for k, v in asdict(self.plan).items()}
        return json.dumps({"slot": self.slot, "plan": plan, "disk": self.disk}, indent=1)

    @classmethod
    def load(cls, text: str) -> Record:
        """Reads what `dump` wrote. ValueError with the reason when that is not what it is."""
        try:
            return cls._load(json.loads(text))
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"it is not whole: {error!r}") from error

    @classmethod
    def _load(cls, data: dict[str, Any]) -> Record:
        plan: dict[str, Any] = data["plan"]
        unknown = plan.keys() - {field.name for field in fields(BoxPlan)}
        if unknown:
            names = ", ".join(sorted(unknown))
            raise ValueError(f"a newer release wrote it: this one does not know {names}")
        for name in ("rootfs", "runtime", "run_dir"):
            plan[name] = None if plan[name] is None else Path(plan[name])
        plan.setdefault("image", "")  # records of earlier releases do not name it
        return cls(data["slot"], BoxPlan(**plan), data.get("disk", PLAIN))


class Records:
    """The records of one installation."""

    def __init__(self, names: HostNames) -> None:
        self._names = names
        self._told: set[str] = set()

    def all(self) -> Iterator[Record]:
        """Every box with a record that can be read, in the order of ids; others are logged once."""
        for box_id in self.ids():
            try:
                record = self.find(box_id)
            except Unavailable as error:
                if box_id not in self._told:
                    _log.error("%s", error, extra={"box": box_id})
                self._told.add(box_id)
                continue
            if record is not None:
                yield record

    def ids(self) -> list[str]:
        """Every box that has a record, in order."""
        return sorted(path.parent.name for path in self._names.boxes_dir.glob("*/box.json"))

    def find(self, box_id: str) -> Record | None:
        """A box's record; None when there is no such box. Unavailable when it cannot be read."""
        path = self._names.paths(box_id).record
        try:
            return Record.load(path.read_text())
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise Unavailable(
                f"the record of the box, {path}, cannot be read: {error}; the box's disk is kept: "
                "put the file back from a copy, or remove the box"
            ) from error

    def get(self, box_id: str) -> Record:
        """A box's record. Raises NotFound."""
        record = self.find(box_id)
        if record is None:
            raise NotFound(f"the backend has no box {box_id}")
        return record

    async def put(self, record: Record) -> None:
        """Writes it; a reader sees the old or the new one, also after a loss of power."""
        path = self._names.paths(record.plan.box_id).record
        await asyncio.to_thread(write, path, record.dump(), durable=True)


def write(path: Path, text: str, *, durable: bool = False) -> None:
    """Replaces a file in one step.

    `durable`: when this returns, the file and its directory outlast a loss of power.
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
