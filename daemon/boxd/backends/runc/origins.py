"""The origins of snapshots: the record of each snapshot's box, in `origins/ID.json`.

A layer is valid only on top of the image version on which it was written. So a box created from a
snapshot gets that version, and the version is not removed as long as the snapshot exists.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from boxd.backends.records import Record, write

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from boxd.backends.host.names import HostNames

_log = logging.getLogger(__name__)


class Origins:
    """The origins of one installation. Each outlives its snapshot."""

    def __init__(self, names: HostNames) -> None:
        self._directory = names.origins_dir

    def put(self, snapshot_id: str, record: Record) -> None:
        """Record the box of a new snapshot."""
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        write(self._directory / f"{snapshot_id}.json", record.dump(), durable=True)

    def find(self, snapshot_id: str) -> Record | None:
        """Return the record of the box at that time, or None if there is no readable one."""
        path = self._directory / f"{snapshot_id}.json"
        try:
            return Record.load(path.read_text())
        except FileNotFoundError:
            return None
        except ValueError as error:
            _log.error("the record of a snapshot's box, %s, cannot be read: %s", path, error)
            return None

    def all(self) -> Iterator[Record]:
        """Return the origins of all snapshots."""
        for path in sorted(self._directory.glob("*.json")):
            record = self.find(path.stem)
            if record is not None:
                yield record

    def drop(self, snapshot_id: str) -> None:
        """Remove an origin. No error if there is none."""
        (self._directory / f"{snapshot_id}.json").unlink(missing_ok=True)

    def keep(self, snapshots: Collection[str]) -> None:
        """Remove all origins except those of `snapshots`: the others are incomplete or removed."""
        for path in self._directory.glob("*.json"):
            if path.stem not in snapshots:
                path.unlink(missing_ok=True)
