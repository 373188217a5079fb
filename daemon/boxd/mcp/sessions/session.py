"""What one client of the plane does and may: its calls, its reading, what it hears of.

It knows neither protocol nor transport. Each call is a task of its own, which is cancelled once,
and waited for until it has cleaned up, when the client wants no answer any more.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from typing import TYPE_CHECKING, Any

from boxd.errors import BoxdError, QuotaExceeded
from boxd.mcp import resources
from boxd.mcp.messages.alone import alone
from boxd.mcp.tools.params import checked
from boxd.mcp.tools.tool import Call

if TYPE_CHECKING:
    from collections.abc import (
        AsyncIterator,
        Awaitable,
        Callable,
        Iterator,
        Mapping,
    )

    from boxd.boxes.limits.budgets.results import Budget, Share
    from boxd.mcp.sessions.watch import Watch
    from boxd.mcp.tools.tool import Tool
    from boxd.operations import Operations
    from boxd.principal import Principal

MAX_CALLS = 32
"""Calls of one connection at once."""
MAX_LISTENS = 16
"""Subscriptions of one connection at once, where each is a request."""
PROGRESS_S = 0.25
"""Between two messages about the progress of one call."""

_log = logging.getLogger(__name__)


class InternalError(Exception):
    """What went wrong stands in the log, under the id that the text shows."""


class Busy(QuotaExceeded):
    """As many calls as there may be are under way."""


class Session:
    """See the module. `listens` and `_calls` change between awaits only."""

    def __init__(
        self,
        operations: Operations,
        principal: Principal,
        budget: Budget,
        watch: Watch | None = None,
    ) -> None:
        """`budget`: the owner's, for results. `watch`: what the connection is told of changes,
        where it is told at all."""
        self.operations = operations
        self.principal = principal
        self.budget = budget
        self.watch = watch
        self.listens = 0
        self._calls = 0
        self._seq = 0

    async def call(
        self,
        tool: Tool,
        given: Mapping[str, Any],
        progress: Callable[[int, str], Awaitable[None]] | None,
        share: Share,
    ) -> dict[str, Any]:
        """Calls a tool. `progress` is told how it gets on, with a number that rises. `share` is
        what it takes for its result, for the caller to release.

        Raises BadArguments, Busy, InternalError, and what the tool raises.
        """
        args = checked(tool.params, given)
        if self._calls >= MAX_CALLS:
            raise Busy(f"busy: {MAX_CALLS} calls are under way on this connection; try again")
        self._calls += 1
        try:
            return await alone(self._run(tool, args, progress, share))
        finally:
            self._calls -= 1

    async def _run(
        self,
        tool: Tool,
        args: Mapping[str, Any],
        progress: Callable[[int, str], Awaitable[None]] | None,
        share: Share,
    ) -> dict[str, Any]:
        lines = Progress(progress)
        with foreseen():
            async with lines.shown():
                call = Call(self.principal, self.operations, args, lines.tell, share.take)
                return await tool.run(call)

    async def read(self, uri: str) -> resources.Content:
        """What a resource holds. NotFound, InternalError."""
        self._seq += 1
        with foreseen():
            return await alone(resources.content(self.operations, self.principal, uri, self._seq))

    async def listing(self) -> list[resources.Listed]:
        """The resources that there are. InternalError."""
        with foreseen():
            return await alone(resources.listing(self.operations, self.principal))


class Progress:
    """Shows the last of the lines that a call tells, now and then."""

    def __init__(self, send: Callable[[int, str], Awaitable[None]] | None) -> None:
        self._send = send
        self._line = ""
        self._news = asyncio.Event()

    def tell(self, line: str) -> None:
        """A line; an earlier one that was not shown yet is dropped."""
        self._line = line
        self._news.set()

    @contextlib.asynccontextmanager
    async def shown(self) -> AsyncIterator[None]:
        """Shows lines while the context lasts."""
        if self._send is None:
            yield
            return
        task = asyncio.create_task(self._show(self._send), name="mcp progress")
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _show(self, send: Callable[[int, str], Awaitable[None]]) -> None:
        number = 0
        while True:
            await self._news.wait()
            self._news.clear()
            number += 1
            await send(number, self._line)
            await asyncio.sleep(PROGRESS_S)


@contextlib.contextmanager
def foreseen() -> Iterator[None]:
    """Lets the service's own errors through; others are logged, and InternalError is raised."""
    try:
        yield
    except BoxdError:
        raise
    except Exception as error:
        number = secrets.token_hex(6)
        _log.exception("internal error %s", number)
        raise InternalError(f"internal error ({number})") from error
