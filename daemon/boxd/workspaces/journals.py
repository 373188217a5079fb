"""The journals of this host's mounts, as `boxd volumes journal` shows them to the operator."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from boxd.errors import NotFound, Unavailable
from boxd.names.words import escaped, shown
from wrkfs.meta.delegations.kept_journals import WAITING, described, kept_journals

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

    from boxd.model.volume import Volume
    from wrkfs.config import VolumeConfig
    from wrkfs.meta.delegations.kept_journals import KeptJournal

MOUNTS = "mounts"
"""Directory in the state directory for the mounts of this host."""
JOURNAL = Path("process", "journal")
"""The journals of a mount, below its directory."""
EARLIER = "journals"
"""Directory in the state directory for the journals of mounts that ran without a sandbox."""
LINES_MAX = 10_000
"""Maximum number of changes that are printed of one journal."""

JournalRow: TypeAlias = tuple[str, str, str, str, str, str, str]
"""Journal, owner and workspace, session, state, time, number of changes, and names."""


class HostJournals:
    """The journals of this host's mounts, below the state directory."""

    def __init__(self, state: Path) -> None:
        self._state = state

    @asynccontextmanager
    async def open(self, config: VolumeConfig) -> AsyncIterator[Path]:
        """Yield the directory of a volume's journals. Raises OSError."""
        directory = self._state / MOUNTS / config.volume / JOURNAL
        await asyncio.to_thread(take_earlier, self._state, config.schema, directory)
        yield directory


def journal_directories(state: Path) -> list[Path]:
    """Return all directories below the state directory that may have journals."""
    mounts = sorted(state.joinpath(MOUNTS).glob("*"))
    return [state / EARLIER, *(mount / JOURNAL for mount in mounts)]


def take_earlier(state: Path, schema: str, directory: Path) -> bool:
    """Move the journals of a volume that mounts without a sandbox left; return whether any moved.

    Those in use stay. Raises OSError.
    """
    moved = False
    for journal in kept_journals(state / EARLIER):
        owner = journal.owner
        if owner is not None and owner.schema == schema and journal.state == WAITING:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            journal.path.rename(directory / journal.path.name)
            moved = True
    return moved


def read_journals(directories: Sequence[Path]) -> list[KeptJournal]:
    """Return the journals in some directories, the oldest first. Raises Unavailable."""
    journals: list[KeptJournal] = []
    for directory in directories:
        try:
            journals += kept_journals(directory)
        except OSError as error:
            raise Unavailable(f"{directory} cannot be read: {error.strerror}") from None
    return sorted(journals, key=lambda journal: journal.written)


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


def journal_lines(directories: Sequence[Path], name: str) -> Iterator[str]:
    """Yield a line for each change in a journal. Raises NotFound, Unavailable."""
    places = {journal.path.name: journal.path for journal in read_journals(directories)}
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
