"""The audit: what administrators do is written down before it is done.

A verb of administrators is run with a principal that an open entry gave out, and with no other, so
that none is forgotten.
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
from boxd.names.words import escaped
from boxd.secret import random_hex

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from boxd.clock import Clock
    from boxd.principal import Principal
    from boxd.store.interface import ControlStore

MAX_LINE = 4096
"""Bytes of a command line, as it is written down."""
_TOKEN = re.compile(r"(svcs?_)[0-9A-Za-z]{16,}")

_log = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class Deed:
    """One command of an administrator while it runs. `cut`: its line was too long to be written
    down whole, so it must not be run. `status` is stored at its end."""

    principal: Principal
    cut: bool
    status: int | None = None
    owners: set[str] = field(default_factory=set)
    """Whom it was about."""


class Audits:
    """See the module. `_open` is changed without an await between look and change."""

    def __init__(self, store: ControlStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._open: dict[str, Deed] = {}

    @asynccontextmanager
    async def entry(self, p: Principal, line: str) -> AsyncIterator[Deed]:
        """Writes a command line down; its commands run inside. Unavailable: it was not written."""
        require(p, Action.ADMINISTER)
        # A key or token that was pasted by mistake stays out of the database.
        shown = escaped(_TOKEN.sub(r"\1***", line)).encode("utf-8", "replace")
        kept = shown[:MAX_LINE].decode("utf-8", "ignore")
        row = Audit(random_hex(16), self._clock.now(), p.owner, kept)
        try:
            await self._store.add_audit(row)
        except Unavailable as error:
            raise Unavailable(
                f"nothing was done, as the audit cannot be written: {error}"
            ) from error
        deed = Deed(replace(p, key_id=row.id), cut=len(shown) > MAX_LINE)
        self._open[row.id] = deed
        try:
            yield deed
        finally:
            del self._open[row.id]
            await self._finish(row.id, deed)

    def deed(self, p: Principal) -> Deed:
        """The open entry that gave the principal out. Forbidden for everybody else."""
        require(p, Action.ADMINISTER)
        deed = self._open.get(p.key_id or "")
        if deed is None:
            raise Forbidden("what administrators do is written down first")
        return deed

    async def _finish(self, audit_id: str, deed: Deed) -> None:
        if deed.status is None:
            return  # it was broken off: the row says that it has no end
        try:
            await self._store.finish_audit(audit_id, deed.status, sorted(deed.owners))
        except BoxdError as error:
            _log.warning("the end of a command is not in the audit: %s", error)
