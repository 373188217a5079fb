"""Replays the journals that dead mount processes of this host left."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING

from wrkfs.errors import Doubtful, Fenced, StorageError
from wrkfs.meta.delegations.delta import Delta
from wrkfs.meta.delegations.journal import left_journals

if TYPE_CHECKING:
    from pathlib import Path

    from wrkfs.meta.delegations.journal import LeftJournal
    from wrkfs.meta.interface.delegations import DelegationStore

log = logging.getLogger(__name__)


async def replay_left(store: DelegationStore, schema: str, root: Path) -> None:
    """Send the changes in journals of dead processes, and fence their sessions.

    What the database no longer accepts stays in a directory for the operator. Raises Unavailable;
    then the journals stay as they are, and the next mount replays them.
    """
    for journal in await asyncio.to_thread(lambda: list(left_journals(root, schema))):
        reason = await _replay(store, journal)
        place = await asyncio.to_thread(partial(journal.close, lost=bool(reason)))
        if place is not None:
            log.error(
                "session %d died and lost changes that it had answered: %s; they are kept in %s",
                journal.owner.session,
                reason,
                place,
            )


async def _replay(store: DelegationStore, journal: LeftJournal) -> str:
    """Replay one journal; return why changes are lost, or an empty string."""
    owner = journal.owner
    applied = await store.applied(owner.session, owner.epoch)
    reason = ""
    for number, records in journal.batches():
        if not records or (applied is not None and number <= applied):
            continue
        if applied is None:
            return "other hosts needed the directories and fenced the session"
        delta = Delta()
        try:
            delta.replay(records)
            await store.apply_for(owner.session, owner.epoch, number, delta)
        except (ValueError, TypeError) as error:
            reason = f"the journal is malformed: {error}"
            break
        except (Fenced, Doubtful, StorageError) as error:
            reason = str(error)
            break
    if applied is not None:
        await store.fence(owner.session, force=True)
    return reason
