"""The box that a connection came for: made, woken and held when a channel needs it."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Protocol

from boxd.boxes.state.requests import BoxAccess
from boxd.errors import Confidential, NotFound

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from contextlib import AbstractAsyncContextManager

    from boxd.boxes.lifecycle.holds import Attachment
    from boxd.model.progress import Progress
    from boxd.operations import Operations
    from boxd.principal import Principal
    from boxd.ssh.cli.command import Door
    from boxd.ssh.connection.router import ToBox


class Attach(Protocol):
    """How channels come to the box; see `Target.attach`."""

    def __call__(self, why: str, progress: Progress) -> AbstractAsyncContextManager[Attachment]: ...


class Target(Protocol):
    """The box of one connection."""

    forwards_agent: bool
    """Whether sessions in it may ask the client's SSH agent, if the client wants that."""

    def attach(self, why: str, progress: Progress) -> AbstractAsyncContextManager[Attachment]:
        """The box, running and held, while the context lasts."""
        ...


class BoxTarget:
    """The box that a user name asks for.

    Critical section: `_lock` is held while a target that makes a new box each time is attached for
    the first time, so that all channels of the connection share that one box.
    """

    forwards_agent = True

    def __init__(
        self,
        operations: Operations,
        principal: Principal,
        to: ToBox,
        door: Door,
        relay: str | None = None,
    ) -> None:
        """`door` is what errors name for further commands. `relay`: the public key of a client that
        comes for the box's own SSH server; the box is confidential then."""
        self._operations = operations
        self._door = door
        self._principal = principal
        self._to = to
        self._relay = relay
        self._lock = asyncio.Lock()
        self._box_id: str | None = None

    @contextlib.asynccontextmanager
    async def attach(self, why: str, progress: Progress) -> AsyncIterator[Attachment]:
        """The box, running and held, while the context lasts."""
        async with contextlib.AsyncExitStack() as stack:
            if self._to.once:
                async with self._lock:
                    attachment = await self._enter_once(stack, why, progress)
            else:
                attachment = await self._enter(stack, why, progress)
            yield attachment

    async def _enter_once(
        self, stack: contextlib.AsyncExitStack, why: str, progress: Progress
    ) -> Attachment:
        if self._box_id is not None:
            access = BoxAccess(self._box_id, kind="reference", why=why, relay=self._relay)
            try:
                return await stack.enter_async_context(
                    self._operations.boxes.attach(self._principal, access, progress)
                )
            except NotFound:
                self._box_id = None  # removed meanwhile: the next one is new again
        attachment = await self._enter(stack, why, progress)
        self._box_id = attachment.box.id
        return attachment

    async def _enter(
        self, stack: contextlib.AsyncExitStack, why: str, progress: Progress
    ) -> Attachment:
        access = BoxAccess(self._to.target, kind=self._to.kind, why=why, relay=self._relay)
        try:
            return await stack.enter_async_context(
                self._operations.boxes.attach(self._principal, access, progress)
            )
        except NotFound as error:
            raise NotFound(self._door.spelled(str(error))) from error
        except Confidential as error:
            raise Confidential(self._door.named(str(error))) from error
