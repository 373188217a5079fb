"""Requests to watch files (`box_guest.shared.watch_messages`). Protocol adapter only."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any

from box_guest.process import accounts
from box_guest.process.file_watch import FileWatch
from box_guest.shared import watch_messages as messages
from box_guest.shared.requests import FULL, Refused, boolean, encode_line
from box_guest.ssh.request_session import RequestSession

if TYPE_CHECKING:
    from box_guest.shared.watch_messages import FileEvent
    from box_guest.ssh.sessions import Services

MAX_OPEN = 16
"""Maximum number of concurrent watches in one box."""


class WatchRequestSession(RequestSession):
    """One watch. It ends with its channel."""

    def __init__(self, services: Services) -> None:
        super().__init__(services)
        self._watch: FileWatch | None = None
        self._ended = asyncio.Event()

    async def serve(self, request: dict[str, Any]) -> None:
        """Watch until the watched directory or the channel is gone."""
        text, recursive = messages.watched_path(request.get("path")), request.get("recursive")
        path = _resolved(accounts.find(self.services.config.user).home, text)
        if len(self.services.watches) >= MAX_OPEN:
            raise Refused(FULL, f"the box already has {MAX_OPEN} file watches; end another first")
        watch = FileWatch(path, recursive=boolean(recursive), send=self._send)
        self._watch = watch
        self.services.watches.add(watch)
        try:
            await self.answer({"watches": watch.watches})
            await self._ended.wait()
        finally:
            watch.close()
            self.services.watches.discard(watch)

    def pause_writing(self) -> None:
        """Collect events for now."""
        super().pause_writing()
        if self._watch is not None:
            self._watch.pause()

    def resume_writing(self) -> None:
        """Send events again."""
        super().resume_writing()
        if self._watch is not None:
            self._watch.resume()

    def _send(self, event: FileEvent) -> None:
        chan = self.channel()
        if chan is not None and not chan.is_closing():
            chan.write(encode_line(event.to_json(), messages.MAX_EVENT))
        if event.kind == messages.END:
            self._ended.set()


def _resolved(home: str, path: str) -> bytes:
    """Return a path without symbolic links; a relative one starts at `home`."""
    return os.path.realpath(os.path.join(home, path)).encode("utf-8", "surrogateescape")
