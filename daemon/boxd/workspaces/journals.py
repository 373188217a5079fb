"""The journals of this host's mounts, as `boxd volumes journal` shows them to the operator."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, TypeAlias

from boxd.errors import NotFound, Unavailable
from boxd.names.words import escaped, shown
from wrkfs.meta.delegations.kept_journals import described, kept_journals

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from boxd.model.volume import Volume
    from wrkfs.meta.delegations.kept_journals import KeptJournal

JOURNALS = "journals"
"""Directory in the state directory for the journals of this host's mounts."""
LINES_MAX = 10_000
"""Maximum number of changes that are printed of one journal."""

JournalRow: TypeAlias = tuple[str, str, str, str, str, str, str]
"""Journal, owner and workspace, session, state, time, number of changes, and names."""


def read_journals(directory: Path) -> list[KeptJournal]:
    """Return the journals in a directory, the oldest first. Raises Unavailable."""
    try:
        return kept_journals(directory)
    except OSError as error:
        raise Unavailable(f"{directory} cannot be read: {error.strerror}") from None


def journal_row(journal: KeptJournal, volumes: list[Volume]) -> JournalRow:
    """Return the row of a journal. Names are escaped."""
    owner = journal.owner
    schema = "" if owner is None else owner.schema
    places = [
        f"{volume.owner}/{volume.workspace or '-'}" for volume in volumes if volume.schema == schema
    ]
    notes = [_text(name) for name in journal.names]
    if journal.fault:
        notes.append(f"({journal.fault})")
    return (
        escaped(journal.path.name),
        escaped(places[0]) if places else "-",
        "-" if owner is None else str(owner.session),
        journal.state,
        f"{datetime.fromtimestamp(journal.written, UTC):%Y-%m-%d %H:%M:%S}Z",
        str(journal.changes),
        escaped(" ".join(notes)),
    )


def journal_lines(directory: Path, name: str) -> Iterator[str]:
    """Yield a line for each change in a journal. Raises NotFound, Unavailable."""
    places = {journal.path.name: journal.path for journal in read_journals(directory)}
    if name not in places:
        raise NotFound(f"there is no journal {shown(name)}; `boxd volumes journal` lists them")
    try:
        lines = described(places[name], _text)
        for line in islice(lines, LINES_MAX):
            yield escaped(line)
        if next(lines, None) is not None:
            yield f"... and more; only the first {LINES_MAX} changes are shown"
    except OSError as error:
        raise Unavailable(f"{places[name]} cannot be read: {error.strerror}") from None


def _text(name: bytes) -> str:
    return shown(name.decode("utf-8", "surrogateescape"))
