"""Connections of an owner that stay: what they are told of changes, and when they may not go on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from boxd.authz import Action, require
from boxd.operations.core import Core, expiry_of

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager, AbstractContextManager

    from boxd.boxes.feed import Listener
    from boxd.principal import Principal


class VisitOperations(Core):
    """See the module."""

    def changes(self, p: Principal) -> AbstractContextManager[Listener]:
        """Hears what changes of that which the principal may see, while the context lasts.

        `boxd.boxes.feed` has the topics. Forbidden.
        """
        require(p, Action.LIST_BOXES)
        return self._feed.listen(p.owner, p.scope)

    def visit(self, p: Principal, why: str) -> AbstractAsyncContextManager[None]:
        """A connection that holds no box; entered and left by the task that serves it.

        Raises inside the context InvalidKey when its key is revoked or expires, Forbidden when the
        owner is blocked.
        """
        self._gate.check_owner(p.owner)
        return self._lifecycle.visit(p.owner, why=why, key_id=p.key_id, expiry=expiry_of(p))
