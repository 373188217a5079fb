"""The outcome of the last backup to each target: `backups.json` in the state directory.

This is a file and not a row, so that `boxd doctor` can report it even while the database is down.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from boxd.embedded.files import write_private

if TYPE_CHECKING:
    from pathlib import Path

FILE = "backups.json"


@dataclass(frozen=True, slots=True)
class Status:
    """The outcome of one target.

    `every` is the period of the service's backups there (None: only on request).
    """

    succeeded: datetime | None = None
    archive: str = ""
    failed: datetime | None = None
    """Time of a failure after the last success; None: the last backup succeeded."""
    why: str = ""
    every: timedelta | None = None


def load(state: Path) -> dict[str, Status]:
    """Return the outcomes by URL of the target. A missing or damaged file counts as empty."""
    try:
        rows = json.loads((state / FILE).read_text(encoding="utf-8"))
        return {url: _status(row) for url, row in rows.items()}
    except (OSError, ValueError, TypeError, AttributeError, KeyError):
        return {}  # the next backup is then due at once


def save(state: Path, url: str, status: Status) -> None:
    """Replace the outcome of a target. Raises OSError."""
    statuses = load(state) | {url: status}
    rows = {
        name: {
            "succeeded": _text(entry.succeeded),
            "archive": entry.archive,
            "failed": _text(entry.failed),
            "why": entry.why,
            "every_s": None if entry.every is None else entry.every.total_seconds(),
        }
        for name, entry in statuses.items()
    }
    write_private(state / FILE, json.dumps(rows, indent=1).encode())


def _status(row: dict[str, str | float | None]) -> Status:
    every = row["every_s"]
    return Status(
        succeeded=_time(row["succeeded"]),
        archive=str(row["archive"]),
        failed=_time(row["failed"]),
        why=str(row["why"]),
        every=None if every is None else timedelta(seconds=float(every)),
    )


def _text(moment: datetime | None) -> str | None:
    return None if moment is None else moment.astimezone(UTC).isoformat(timespec="seconds")


def _time(text: object) -> datetime | None:
    return None if text is None else datetime.fromisoformat(str(text)).astimezone(UTC)
