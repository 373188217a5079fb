"""The box of a connection. The daemon creates, wakes and holds it when a channel needs it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Protocol

from boxd.boxes.state.requests import BoxAccess
from boxd.errors import BoxdError, Confidential, NotFound
from boxd.operations.boxes import SHELL
from boxd.ssh.cli.removal_lines import login_lines

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from contextlib import AbstractAsyncContextManager

    from boxd.boxes.lifecycle.holds import Attachment
    from boxd.model.progress import Progress
    from boxd.operations import Operations
    from boxd.principal import Principal
    from boxd.ssh.cli.command import Endpoint
    from boxd.ssh.connection.router import BoxRoute


_log = logging.getLogger(__name__)


class Attach(Protocol):
    """Attaches a channel to the box, as `Target.attach` does."""

    def __call__(self, why: str, progress: Progress) -> AbstractAsyncContextManager[Attachment]: ...


class Target(Protocol):
    """The box of one connection."""

    forwards_agent: bool
    """Whether sessions in the box may use the client's SSH agent, if the client offers it."""

    def attach(self, why: str, progress: Progress) -> AbstractAsyncContextManager[Attachment]:
        """Hold the running box while the context lasts.

        `why` is the reason that the owner sees. `progress` receives reports for the user.
        """
        ...


class BoxTarget:
    """The box that a user name asks for.

    Critical section: if the route creates a new box each time, the first attachment holds `_lock`,
    so that all channels of the connection share that box.
    """

    forwards_agent = True

    def __init__(
        self,
        operations: Operations,
        principal: Principal,
        box_route: BoxRoute,
        endpoint: Endpoint,
        relay: str | None = None,
    ) -> None:
        """`endpoint` is the address in the commands that errors suggest.

        `relay` is the public key of a client that uses the box's own SSH server. The box is then
        confidential.
        """
        self._operations = operations
        self._endpoint = endpoint
        self._principal = principal
        self._route = box_route
        self._relay = relay
        self._lock = asyncio.Lock()
        self._box_id: str | None = None

    @contextlib.asynccontextmanager
    async def attach(self, why: str, progress: Progress) -> AsyncIterator[Attachment]:
        """Hold the running box while the context lasts."""
        async with contextlib.AsyncExitStack() as stack:
            if self._route.creates_new_box:
                async with self._lock:
                    attachment = await self._enter_once(stack, why, progress)
            else:
                attachment = await self._enter(stack, why, progress)
            yield attachment

    async def _enter_once(
        self, stack: contextlib.AsyncExitStack, why: str, progress: Progress
    ) -> Attachment:
        """Attach to the box that this connection created; create it on the first call."""
        if self._box_id is not None:
            access = BoxAccess(self._box_id, kind="reference", why=why, relay=self._relay)
            try:
                return await stack.enter_async_context(
                    self._operations.boxes.attach(self._principal, access, progress)
                )
            except NotFound:
                self._box_id = None  # the box was removed: create another one
        attachment = await self._enter(stack, why, progress)
        self._box_id = attachment.box.id
        return attachment

    async def _enter(
        self, stack: contextlib.AsyncExitStack, why: str, progress: Progress
    ) -> Attachment:
        route = self._route
        access = BoxAccess(route.target, kind=route.kind, why=why, relay=self._relay)
        try:
            attachment = await stack.enter_async_context(
                self._operations.boxes.attach(self._principal, access, progress)
            )
        except NotFound as error:
            raise NotFound(self._endpoint.with_cli_command(str(error))) from error
        except Confidential as error:
            raise Confidential(self._endpoint.with_jump_host(str(error))) from error
        if why == SHELL and progress.on_hint is not None:
            await self._report_removals(progress.on_hint)
        return attachment

    async def _report_removals(self, report: Callable[[str], None]) -> None:
        """Report unused boxes of the owner that the service removes soon. A failure is no error."""
        try:
            boxes = await self._operations.boxes.removal_news(self._principal)
        except BoxdError as error:
            _log.warning("cannot list unused boxes at a login: %s", error)
            return
        for line in login_lines(self._endpoint, boxes):
            report(line)
