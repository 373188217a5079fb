"""What the runc backend keeps of a box: `box.json` in the box's directory."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from boxd.backends.interface import BoxPlan
from boxd.errors import NotFound

if TYPE_CHECKING:
    from collections.abc import Iterator

    from boxd.backends.hostnames import HostNames


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
        """Reads what `dump` wrote."""
        data: dict[str, Any] = json.loads(text)
        plan: dict[str, Any] = data["plan"]
        for name in ("rootfs", "runtime", "run_dir"):
            plan[name] = None if plan[name] is None else Path(plan[name])
        plan.setdefault("image", "")  # records of earlier releases do not name it
        return cls(data["slot"], BoxPlan(**plan), data.get("disk", PLAIN))


class Records:
    """The records of one installation."""

    def __init__(self, names: HostNames) -> None:
        self._names = names

    def all(self) -> Iterator[Record]:
        """Every box, in the order of ids."""
        for path in sorted(self._names.boxes_dir.glob("*/box.json")):
            record = self.find(path.parent.name)
            if record is not None:
                yield record

    def find(self, box_id: str) -> Record | None:
        """A box's record; None when there is no such box."""
        try:
            return Record.load(self._names.paths(box_id).record.read_text())
        except FileNotFoundError:
            return None

    def get(self, box_id: str) -> Record:
        """A box's record. Raises NotFound."""
        record = self.find(box_id)
        if record is None:
            raise NotFound(f"the backend has no box {box_id}")
        return record

    def put(self, record: Record) -> None:
        """Writes it; a reader sees the old or the new one."""
        write(self._names.paths(record.plan.box_id).record, record.dump())


def write(path: Path, text: str) -> None:
    """Replaces a file in one step."""
    temporary = path.with_name(f"{path.name}.new")
    temporary.write_text(text)
    temporary.replace(path)
