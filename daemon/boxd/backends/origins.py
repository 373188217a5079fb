"""On what boxes snapshots stand: the record of the box that each was taken of, `origins/ID.json`.

A layer means something above the version of the image that it was written on, and no other: what is
made of a snapshot gets that version, and images keep it as long as the snapshot is there.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from boxd.backends.records import Record, write

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from boxd.backends.hostnames import HostNames

_log = logging.getLogger(__name__)


class Origins:
    """Those of one installation; each is written before its snapshot, and removed after it."""

    def __init__(self, names: HostNames) -> None:
        self._directory = names.origins_dir

    def put(self, snapshot_id: str, record: Record) -> None:
        """Records of which box a snapshot is taken."""
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        write(self._directory / f"{snapshot_id}.json", record.dump(), durable=True)

    def find(self, snapshot_id: str) -> Record | None:
        """The box as it was then; None when nothing was recorded that can be read."""
        path = self._directory / f"{snapshot_id}.json"
        try:
            return Record.load(path.read_text())
        except FileNotFoundError:
            return None
        except ValueError as error:
            _log.error("the record of a snapshot's box, %s, cannot be read: %s", path, error)
            return None

    def all(self) -> Iterator[Record]:
        """Of all snapshots."""
        for path in sorted(self._directory.glob("*.json")):
            record = self.find(path.stem)
            if record is not None:
                yield record

    def drop(self, snapshot_id: str) -> None:
        """Forgets one. No error if there is none."""
        (self._directory / f"{snapshot_id}.json").unlink(missing_ok=True)

    def keep(self, snapshots: Collection[str]) -> None:
        """Forgets those of snapshots that were not finished, or are gone."""
        for path in self._directory.glob("*.json"):
            if path.stem not in snapshots:
                path.unlink(missing_ok=True)
