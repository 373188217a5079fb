"""The client: the way to all objects of an account."""

from __future__ import annotations

import secrets
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Self

from boxd_client._async.box import EXEC_S, MARGIN_S, AsyncBox
from boxd_client._async.collections import (
    AsyncAgents,
    AsyncAsks,
    AsyncBoxes,
    AsyncKeys,
    AsyncProfiles,
    AsyncSecrets,
    AsyncShares,
    AsyncWorkspaces,
)
from boxd_client._async.files import AsyncDrive
from boxd_client._async.streams import AsyncBatchStream, batch_events
from boxd_client._async.transport import AsyncTransport
from boxd_client.config import load
from boxd_client.models import Identity, Stat
from boxd_client.protocol import (
    Request,
    Retry,
    RetryPolicy,
    json_request,
    model_of,
    models_of,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence
    from types import TracebackType

TIMEOUT_S = 120.0
"""Seconds within which an answer must be complete, and a stream must begin."""
TEMPORARY = "1h"
"""Deadline of a temporary box, for the case that its program dies."""


class AsyncClient:
    """A client of one service with one API key. Close it, or use it as a context manager.

    `url` and `key` come from the arguments, from BOXD_URL and BOXD_API_KEY, or from the file that
    `box login` writes. Raises ConfigurationError.
    """

    def __init__(
        self,
        url: str | None = None,
        key: str | None = None,
        *,
        timeout: float = TIMEOUT_S,
        retries: RetryPolicy | None = None,
    ) -> None:
        self._transport = AsyncTransport(load(url, key), timeout, retries or RetryPolicy())
        self.boxes = AsyncBoxes(self._transport)
        self.workspaces = AsyncWorkspaces(self._transport)
        self.profiles = AsyncProfiles(self._transport)
        self.secrets = AsyncSecrets(self._transport)
        self.keys = AsyncKeys(self._transport)
        self.shares = AsyncShares(self._transport)
        self.agent = AsyncAgents(self._transport)
        self.asks = AsyncAsks(self._transport)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    @property
    def url(self) -> str:
        """Return the URL of the service."""
        return self._transport.settings.url

    async def aclose(self) -> None:
        """Close all connections."""
        await self._transport.aclose()

    def box(self, ref: str) -> AsyncBox:
        """Return the box of a reference: `name`, or `workspace/name`. It sends nothing."""
        return AsyncBox(self._transport, ref)

    @asynccontextmanager
    async def temporary(self, image: str | None = None) -> AsyncIterator[AsyncBox]:
        """Create a box with a random name and remove it at the end of the context."""
        name = f"tmp-{secrets.token_hex(4)}"
        box = await self.boxes.create(name, image=image, deadline=TEMPORARY)
        try:
            yield box
        finally:
            await box.remove(force=True)

    def drive(self, workspace: str | None = None) -> AsyncDrive:
        """Return the files of the drive of a workspace, which boxes see below /wrk."""
        return AsyncDrive(self._transport, "/v1/wrk", workspace)

    def batch(
        self,
        boxes: Sequence[str],
        cmd: str,
        *,
        env: Mapping[str, str] | None = None,
        stdin: str | None = None,
        timeout: int = EXEC_S,
    ) -> AsyncBatchStream:
        """Run a command in at most 32 boxes at once and return a stream of their output."""
        body = {
            "boxes": list(boxes),
            "cmd": cmd,
            "env": dict(env) if env else None,
            "stdin": stdin,
            "timeout_s": timeout,
        }
        request = json_request("POST", "/v1/batch/exec", body)
        return AsyncBatchStream(batch_events(self._transport, request, timeout + MARGIN_S))

    async def whoami(self) -> Identity:
        """Return the account of the API key."""
        request = Request("GET", "/v1/whoami", retry=Retry.SAFE)
        return model_of(await self._transport.send(request), Identity)

    async def stat(self) -> list[Stat]:
        """Return use and limits of the account."""
        answer = await self._transport.send(Request("GET", "/v1/stat", retry=Retry.SAFE))
        return models_of(answer, Stat)
