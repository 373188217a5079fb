"""Replays the journals that dead mount processes of this host left."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING

from wrkfs.errors import NoSpace, Unavailable, WrkfsError
from wrkfs.meta.delegations.delta import Delta
from wrkfs.meta.delegations.journal import left_journals

if TYPE_CHECKING:
    from pathlib import Path

    from wrkfs.meta.delegations.journal import LeftJournal
    from wrkfs.meta.interface.delegations import DelegationStore

log = logging.getLogger(__name__)


async def replay_left(store: DelegationStore, schema: str, root: Path) -> None:
    """Send the changes in journals of dead processes, and fence their sessions.

    What the database no longer accepts stays in a directory for the operator. Raises Unavailable,
    and NoSpace if the database's disk is full; then the journals stay as they are, and the next
    mount replays them.
    """
    journals = await asyncio.to_thread(lambda: list(left_journals(root, schema)))
    try:
        for journal in journals:
            reason = await _replay(store, journal)
            place = await asyncio.to_thread(partial(journal.close, lost=bool(reason)))
            if place is not None:
                log.error(
                    "session %d died and lost changes that it had answered: %s; they are kept in "
                    "%s",
                    journal.owner.session,
                    reason,
                    place,
                )
    finally:
        for journal in journals:
            journal.release()


async def _replay(store: DelegationStore, journal: LeftJournal) -> str:
    """Replay one journal; return why changes are lost, or an empty string.

    Raises Unavailable, NoSpace.
    """
    owner = journal.owner
    applied = await store.applied(owner.session, owner.epoch)
    reason = ""
    try:
        for number, records in journal.batches():
            if not records or (applied is not None and number <= applied):
                continue
            if applied is None:
                return "other hosts needed the directories and fenced the session"
            delta = Delta()
            delta.replay(records)
            await store.apply_for(owner.session, owner.epoch, number, delta)
    except (Unavailable, NoSpace):
        raise
    except (ValueError, TypeError, OSError) as error:
        reason = f"the journal is malformed, or cannot be read: {error}"
    except WrkfsError as error:
        reason = str(error)
    if applied is not None:
        await store.fence(owner.session, force=True)
    return reason
