"""One client's tool calls, resource reads and subscriptions, with their limits.

A session knows neither the protocol nor the transport. Each call is a task of its own. When the
client no longer wants an answer, the session cancels the task once, and waits for its cleanup.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from typing import TYPE_CHECKING, Any

from boxd.errors import BoxdError, QuotaExceeded
from boxd.mcp import resources
from boxd.mcp.messages.single_cancel import run_with_single_cancel
from boxd.mcp.tools.params import check_arguments
from boxd.mcp.tools.tool import Call
from boxd.observation import Work

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

    SendProgress = Callable[[int, str], Awaitable[None]]
    """Sends one progress message: an increasing number, and a line of text."""

MAX_CALLS = 32
"""Maximum number of concurrent calls of one connection."""
MAX_LISTENS = 16
"""Maximum number of open `subscriptions/listen` requests of one connection."""
PROGRESS_S = 0.25
"""Minimum time between two progress messages of one call."""

_log = logging.getLogger(__name__)


class InternalError(Exception):
    """An unexpected error. The text shows only the id of the log entry with the cause."""


class Busy(QuotaExceeded):
    """The connection has the maximum number of concurrent calls."""


class Session:
    """The state of one client. Critical section: `listens` and `_calls` change without an await."""

    def __init__(
        self,
        operations: Operations,
        principal: Principal,
        budget: Budget,
        watch: Watch | None = None,
    ) -> None:
        """`budget` limits the owner's results.

        `watch` holds the connection's subscriptions; None: the connection cannot receive
        notifications.
        """
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
        arguments: Mapping[str, Any],
        progress: SendProgress | None,
        share: Share,
    ) -> dict[str, Any]:
        """Call a tool and return its result.

        The tool reserves room for its result from `share`; the caller releases the share.
        Raises BadArguments, Busy, InternalError, and the errors of the tool.
        """
        args = check_arguments(tool.params, arguments)
        if self._calls >= MAX_CALLS:
            raise Busy(f"busy: {MAX_CALLS} calls are running on this connection; try again later")
        self._calls += 1
        try:
            return await run_with_single_cancel(self._run(tool, args, progress, share))
        finally:
            self._calls -= 1

    async def _run(
        self,
        tool: Tool,
        args: Mapping[str, Any],
        progress: SendProgress | None,
        share: Share,
    ) -> dict[str, Any]:
        reporter = ProgressReporter(progress)
        observing = self.operations.observer.work(Work.MCP_CALL, tool.name)
        with observing, unexpected_errors_logged():
            async with reporter.sending():
                call = Call(self.principal, self.operations, args, reporter.report, share.take)
                return await tool.run(call)

    async def read(self, uri: str) -> resources.Content:
        """Return the content of a resource. Raises NotFound and InternalError."""
        self._seq += 1
        with unexpected_errors_logged():
            return await run_with_single_cancel(
                resources.read_resource(self.operations, self.principal, uri, self._seq)
            )

    async def list_resources(self) -> list[resources.ResourceEntry]:
        """Return the available resources. Raises InternalError."""
        with unexpected_errors_logged():
            return await run_with_single_cancel(
                resources.list_resources(self.operations, self.principal)
            )


class ProgressReporter:
    """Sends the latest progress line of a call, at most once per PROGRESS_S."""

    def __init__(self, send: SendProgress | None) -> None:
        """`send` None: the client did not ask for progress."""
        self._send = send
        self._line = ""
        self._reported = asyncio.Event()

    def report(self, line: str) -> None:
        """Set the line to send. It replaces an earlier line that was not sent."""
        self._line = line
        self._reported.set()

    @contextlib.asynccontextmanager
    async def sending(self) -> AsyncIterator[None]:
        """Send lines while the context lasts."""
        if self._send is None:
            yield
            return
        task = asyncio.create_task(self._send_lines(self._send), name="mcp progress")
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _send_lines(self, send: SendProgress) -> None:
        number = 0
        while True:
            await self._reported.wait()
            self._reported.clear()
            number += 1
            await send(number, self._line)
            await asyncio.sleep(PROGRESS_S)


@contextlib.contextmanager
def unexpected_errors_logged() -> Iterator[None]:
    """Pass on the service's own errors. Log any other error and raise InternalError instead."""
    try:
        yield
    except BoxdError:
        raise
    except Exception as error:
        error_id = secrets.token_hex(6)
        _log.exception("internal error %s", error_id)
        raise InternalError(f"internal error ({error_id})") from error
