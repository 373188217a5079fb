"""The audit: a command of an administrator is recorded before it runs.

Methods for administrators accept only the principal that an open entry issued, so that no command
runs without an entry.
"""

from __future__ import annotations

import logging
import re
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from boxd.authz import Action, require
from boxd.errors import BoxdError, Forbidden, Unavailable
from boxd.model.account import Audit
from boxd.names.fingerprint import parse_owner
from boxd.names.words import escaped
from boxd.secret import random_hex

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from boxd.clock import Clock
    from boxd.principal import Principal
    from boxd.store.interface import ControlStore

MAX_LINE = 4096
"""Maximum size of a command line in the audit, in bytes."""
_TOKEN = re.compile(r"(svcs?_)[0-9A-Za-z]{16,}")

_log = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class Deed:
    """One command of an administrator while it runs.

    `cut`: the line was too long to be recorded whole, so the command must not run. The audit stores
    `status` when the command ends.
    """

    principal: Principal
    cut: bool
    status: int | None = None
    owners: set[str] = field(default_factory=set)
    """The owners that the command is about."""

    def about(self, text: str) -> str:
        """Return the owner that a text means, and record it in the audit entry. Raises BadName."""
        owner = parse_owner(text)
        self.owners.add(owner)
        return owner


class Audits:
    """Records commands, and tracks those that are running.

    Critical sections: none; `_open` is read and changed without an await in between.
    """

    def __init__(self, store: ControlStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._open: dict[str, Deed] = {}

    @asynccontextmanager
    async def entry(self, p: Principal, line: str) -> AsyncIterator[Deed]:
        """Record a command line that runs inside the context. Raises Unavailable if that fails."""
        require(p, Action.ADMINISTER)
        # A key or token that an administrator pasted by mistake must not enter the database.
        masked = escaped(_TOKEN.sub(r"\1***", line)).encode("utf-8", "replace")
        recorded = masked[:MAX_LINE].decode("utf-8", "ignore")
        row = Audit(random_hex(16), self._clock.now(), p.owner, recorded)
        try:
            await self._store.add_audit(row)
        except Unavailable as error:
            raise Unavailable(
                f"nothing was done, because the audit cannot be written: {error}"
            ) from error
        deed = Deed(replace(p, key_id=row.id), cut=len(masked) > MAX_LINE)
        self._open[row.id] = deed
        try:
            yield deed
        finally:
            del self._open[row.id]
            await self._finish(row.id, deed)

    def deed(self, p: Principal) -> Deed:
        """Return the open entry that issued a principal. Raises Forbidden for any other one."""
        require(p, Action.ADMINISTER)
        deed = self._open.get(p.key_id or "")
        if deed is None:
            raise Forbidden("commands of administrators must have an audit entry")
        return deed

    async def _finish(self, audit_id: str, deed: Deed) -> None:
        if deed.status is None:
            return  # the command was interrupted: its row has no end
        try:
            await self._store.finish_audit(audit_id, deed.status, sorted(deed.owners))
        except BoxdError as error:
            _log.warning("the end of a command is not in the audit: %s", error)
