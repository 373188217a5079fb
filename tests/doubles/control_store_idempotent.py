"""Requests with an idempotency key of ControlStore in memory; see `memory`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import datetime

    from boxd.model.idempotent import IdempotentRequest


class MemoryIdempotent:
    """See the module."""

    def __init__(self) -> None:
        super().__init__()
        self._requests: dict[tuple[str, bytes], IdempotentRequest] = {}

    async def start_request(self, request: IdempotentRequest) -> IdempotentRequest:
        """See ControlStore."""
        return self._requests.setdefault((request.owner, request.key_sha256), request)

    async def finish_request(self, request: IdempotentRequest, status: int, sealed: bytes) -> None:
        """See ControlStore."""
        place = request.owner, request.key_sha256
        stored = self._requests.get(place)
        if stored is not None and stored.attempt == request.attempt:
            self._requests[place] = replace(stored, status=status, sealed=sealed)

    async def drop_request(self, request: IdempotentRequest) -> None:
        """See ControlStore."""
        place = request.owner, request.key_sha256
        stored = self._requests.get(place)
        if stored is not None and stored.attempt == request.attempt:
            del self._requests[place]

    async def trim_requests(self, owner: str, before: datetime, keep: int) -> None:
        """See ControlStore."""
        mine = [one for one in self._requests.values() if one.owner == owner]
        mine.sort(key=lambda one: one.key_sha256)
        mine.sort(key=lambda one: one.started, reverse=True)
        kept = {one.key_sha256 for one in mine[:keep] if one.started >= before}
        self._requests = {
            place: one
            for place, one in self._requests.items()
            if place[0] != owner or place[1] in kept
        }
