"""Long connections that hold no box: change notifications, and expiry of their credential."""

from __future__ import annotations

from typing import TYPE_CHECKING

from boxd.authz import Action, require
from boxd.boxes.presence.expiry import Expiry

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager, AbstractContextManager

    from boxd.boxes.lifecycle.lifecycle import Lifecycle
    from boxd.boxes.state.feed import Listener
    from boxd.operations.shared.callers import Callers
    from boxd.principal import Principal


class VisitOperations:
    """Serves connections that hold no box. Holds no state."""

    def __init__(self, lifecycle: Lifecycle, callers: Callers) -> None:
        self._lifecycle = lifecycle
        self._callers = callers

    def changes(self, p: Principal) -> AbstractContextManager[Listener]:
        """Receive changes of everything that the principal can see, while the context lasts.

        `boxd.boxes.state.feed` defines the topics. Raises Forbidden.
        """
        require(p, Action.LIST_BOXES)
        return self._lifecycle.feed.listen(p.owner, p.scope)

    def visit(self, p: Principal, why: str) -> AbstractAsyncContextManager[None]:
        """Register a connection that holds no box. One task must enter and leave the context.

        Raises inside the context InvalidKey when the key is revoked or expires, and Forbidden when
        the operator blocks the owner.
        """
        self._callers.check_admitted(p)
        return self._lifecycle.visit(p.owner, why=why, key_id=p.key_id, expiry=Expiry.of(p))
