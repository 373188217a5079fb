"""The box that a connection came for: made, woken and held when a channel needs it."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Protocol

from boxd.errors import Confidential, NotFound

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from contextlib import AbstractAsyncContextManager

    from boxd.boxes.lifecycle.holds import Attachment
    from boxd.operations import Operations
    from boxd.principal import Principal
    from boxd.ssh.cli.command import Door
    from boxd.ssh.connection.router import ToBox

    Tell = Callable[[str], None]


class Attach(Protocol):
    """How channels come to the box; see `Target.attach`."""

    def __call__(
        self, why: str, notes: Tell, progress: Tell | None = None
    ) -> AbstractAsyncContextManager[Attachment]: ...


class Target(Protocol):
    """The box of one connection."""

    forwards_agent: bool
    """Whether sessions in it may ask the client's SSH agent, if the client wants that."""

    def attach(
        self, why: str, notes: Tell, progress: Tell | None = None
    ) -> AbstractAsyncContextManager[Attachment]:
        """The box, running and held, while the context lasts. `notes` gets lines for people,
        `progress` what they wait for."""
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
    async def attach(
        self, why: str, notes: Tell, progress: Tell | None = None
    ) -> AsyncIterator[Attachment]:
        """The box, running and held, while the context lasts."""
        async with contextlib.AsyncExitStack() as stack:
            if self._to.once:
                async with self._lock:
                    attachment = await self._enter_once(stack, why, notes, progress)
            else:
                attachment = await self._enter(stack, why, notes, progress)
            yield attachment

    async def _enter_once(
        self, stack: contextlib.AsyncExitStack, why: str, notes: Tell, progress: Tell | None
    ) -> Attachment:
        if self._box_id is not None:
            try:
                return await stack.enter_async_context(
                    self._operations.boxes.attach(
                        *(self._principal, self._box_id),
                        kind="reference",
                        why=why,
                        relay=self._relay,
                        notes=notes,
                        progress=progress,
                    )
                )
            except NotFound:
                self._box_id = None  # removed meanwhile: the next one is new again
        attachment = await self._enter(stack, why, notes, progress)
        self._box_id = attachment.box.id
        return attachment

    async def _enter(
        self, stack: contextlib.AsyncExitStack, why: str, notes: Tell, progress: Tell | None
    ) -> Attachment:
        held = self._operations.boxes.attach(
            *(self._principal, self._to.target),
            kind=self._to.kind,
            why=why,
            relay=self._relay,
            notes=notes,
            progress=progress,
        )
        try:
            return await stack.enter_async_context(held)
        except NotFound as error:
            raise NotFound(self._door.spelled(str(error))) from error
        except Confidential as error:
            raise Confidential(self._door.named(str(error))) from error
