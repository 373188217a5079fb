"""Replays the journals that dead mount processes of this host left."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, TypeAlias

from wrkfs.errors import NoSpace, Unavailable, WrkfsError
from wrkfs.meta.delegations.delta import Delta
from wrkfs.meta.delegations.journal import NAMELESS, left_journals

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from wrkfs.meta.delegations.journal import LeftBatch, LeftJournal, Owner
    from wrkfs.meta.interface.delegations import DelegationStore
    from wrkfs.types import SessionId

OpenJournals: TypeAlias = "Callable[[], AbstractAsyncContextManager[Path]]"
"""Returns a context with the directory of a volume's journals."""

log = logging.getLogger(__name__)

_FENCED = "other hosts needed the directories and fenced the session"
_REASONS = 5
"""Maximum number of reasons in a message."""


async def replay_opened(
    store: DelegationStore, schema: str, open_journals: OpenJournals
) -> set[SessionId]:
    """Replay the journals in a directory that is open only meanwhile: see `replay_left`."""
    async with open_journals() as root:
        return await replay_left(store, schema, root)


async def replay_left(store: DelegationStore, schema: str, root: Path) -> set[SessionId]:
    """Send the changes in journals of dead processes, and fence their sessions.

    What the database does not accept stays in a directory for the operator. Returns the sessions
    whose journals are in use, or which another process replays. Raises Unavailable, and NoSpace if
    the database's disk is full; then the journals stay as they are, and the next mount replays
    them.
    """
    journals, busy = await asyncio.to_thread(left_journals, root, schema)
    try:
        for journal in journals:
            reason = journal.fault or await _replay(store, journal)
            await asyncio.to_thread(_close, journal, reason)
    finally:
        for journal in journals:
            journal.release()
    return busy


def _close(journal: LeftJournal, reason: str) -> None:
    """Delete a journal, or keep it and tell why if there is a reason."""
    try:
        place = journal.close(lost=bool(reason))
    except OSError as error:
        log.error("cannot move the journal %s: %s", journal.path, error)
        place = journal.path
    if reason:
        number = "of an unknown number" if journal.owner is None else journal.owner.session
        log.error(
            "session %s died and lost changes that it had answered: %s; they are kept in %s",
            number,
            reason,
            place,
        )


async def _replay(store: DelegationStore, journal: LeftJournal) -> str:
    """Replay one journal; return why changes are lost, or an empty string.

    Raises Unavailable, NoSpace.
    """
    owner, reasons = journal.owner, []
    if owner is None:
        return NAMELESS
    applied = complete = await store.claim(owner.session, owner.epoch, owner.channel)
    if applied is None or complete is None:
        return _FENCED if await asyncio.to_thread(journal.has_entries) else ""
    try:
        for batch in journal.batches():
            reason = await _send(store, owner, batch, applied, complete)
            if reason:
                reasons.append(reason)
                # Earlier replays may have sent the changes before an incomplete one.
                complete = min(complete, batch.number - 1)
                continue
            journal.applied.add(batch.number)
            if batch.records:
                complete = max(complete, batch.number)
    except (Unavailable, NoSpace):
        raise
    except (ValueError, TypeError, OSError) as error:
        reasons.append(f"the journal is malformed, or cannot be read: {error}")
    except WrkfsError as error:
        reasons.append(str(error))
    await store.fence(owner.session, force=True)
    return "; ".join(reasons[:_REASONS])


async def _send(
    store: DelegationStore, owner: Owner, batch: LeftBatch, applied: int, complete: int
) -> str:
    """Send a batch that the database lacks; return why some of it is lost, or an empty string.

    `applied` is the last batch in the database, and `complete` the last one of which no change is
    missing. Raises Unavailable, ValueError, TypeError, and the errors of `apply_for`.
    """
    if batch.after > complete or not batch.fits:
        return f"batch {batch.number} needs batch {batch.after}, which is missing or incomplete"
    if batch.records and batch.number > applied:
        # Extends the tenure: a session that waits for this one would fence it.
        if await store.claim(owner.session, owner.epoch, owner.channel) is None:
            return _FENCED
        delta = Delta()
        delta.replay(batch.records)
        await store.apply_for(owner.session, owner.epoch, batch.number, delta)
    return "" if batch.is_whole else f"the last change of batch {batch.number} is incomplete"
