"""The client: the way to all objects of an account."""

from __future__ import annotations

import secrets
from contextlib import contextmanager
from typing import TYPE_CHECKING, Self

from boxd_client._sync.box import EXEC_S, MARGIN_S, Box
from boxd_client._sync.collections import (
    Agents,
    Asks,
    Boxes,
    Keys,
    Profiles,
    Secrets,
    Shares,
    Workspaces,
)
from boxd_client._sync.files import Drive
from boxd_client._sync.streams import BatchStream, batch_events
from boxd_client._sync.transport import Transport
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
    from collections.abc import Iterator, Mapping, Sequence
    from types import TracebackType

TIMEOUT_S = 120.0
"""Seconds within which an answer must be complete, and a stream must begin."""
TEMPORARY = "1h"
"""Deadline of a temporary box, for the case that its program dies."""


class Client:
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
        self._transport = Transport(load(url, key), timeout, retries or RetryPolicy())
        self.boxes = Boxes(self._transport)
        self.workspaces = Workspaces(self._transport)
        self.profiles = Profiles(self._transport)
        self.secrets = Secrets(self._transport)
        self.keys = Keys(self._transport)
        self.shares = Shares(self._transport)
        self.agent = Agents(self._transport)
        self.asks = Asks(self._transport)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def url(self) -> str:
        """Return the URL of the service."""
        return self._transport.settings.url

    def close(self) -> None:
        """Close all connections."""
        self._transport.close()

    def box(self, ref: str) -> Box:
        """Return the box of a reference: `name`, or `workspace/name`. It sends nothing."""
        return Box(self._transport, ref)

    @contextmanager
    def temporary(self, image: str | None = None) -> Iterator[Box]:
        """Create a box with a random name and remove it at the end of the context."""
        name = f"tmp-{secrets.token_hex(4)}"
        box = self.boxes.create(name, image=image, deadline=TEMPORARY)
        try:
            yield box
        finally:
            box.remove(force=True)

    def drive(self, workspace: str | None = None) -> Drive:
        """Return the files of the drive of a workspace, which boxes see below /wrk."""
        return Drive(self._transport, "/v1/wrk", workspace)

    def batch(
        self,
        boxes: Sequence[str],
        cmd: str,
        *,
        env: Mapping[str, str] | None = None,
        stdin: str | None = None,
        timeout: int = EXEC_S,
    ) -> BatchStream:
        """Run a command in at most 32 boxes at once and return a stream of their output."""
        body = {
            "boxes": list(boxes),
            "cmd": cmd,
            "env": dict(env) if env else None,
            "stdin": stdin,
            "timeout_s": timeout,
        }
        request = json_request("POST", "/v1/batch/exec", body)
        return BatchStream(batch_events(self._transport, request, timeout + MARGIN_S))

    def whoami(self) -> Identity:
        """Return the account of the API key."""
        request = Request("GET", "/v1/whoami", retry=Retry.SAFE)
        return model_of(self._transport.send(request), Identity)

    def stat(self) -> list[Stat]:
        """Return use and limits of the account."""
        answer = self._transport.send(Request("GET", "/v1/stat", retry=Retry.SAFE))
        return models_of(answer, Stat)
