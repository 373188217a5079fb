"""How the last backups went, by target: `backups.json` in the state directory.

A file and not a row, so that a database that is out does not keep `boxd doctor` from telling it.
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
    """Of one target. `every`: how often the service makes one there; None: when somebody asks."""

    succeeded: datetime | None = None
    archive: str = ""
    failed: datetime | None = None
    """Of a failure after the last success; None: the last one succeeded."""
    why: str = ""
    every: timedelta | None = None


def load(state: Path) -> dict[str, Status]:
    """What is known, by URL of the target; nothing when the file is missing or damaged."""
    try:
        found = json.loads((state / FILE).read_text(encoding="utf-8"))
        return {url: _status(row) for url, row in found.items()}
    except (OSError, ValueError, TypeError, AttributeError, KeyError):
        return {}  # then the next backup is made at once


def note(state: Path, url: str, status: Status) -> None:
    """Replaces what is known of a target. Raises OSError."""
    known = load(state) | {url: status}
    rows = {
        name: {
            "succeeded": _text(one.succeeded),
            "archive": one.archive,
            "failed": _text(one.failed),
            "why": one.why,
            "every_s": None if one.every is None else one.every.total_seconds(),
        }
        for name, one in known.items()
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
