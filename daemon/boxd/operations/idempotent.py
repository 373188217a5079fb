"""Idempotency keys: a request that is sent twice with the same key is done once.

A client that loses the connection cannot know whether its request was done. It sends the request
again with the same key, and gets the response of the first one. A key belongs to the credential
that sent it. The service remembers successful responses for a day, encrypted.
"""

from __future__ import annotations

import hashlib
import logging
import re
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from boxd.errors import BadRequest, Conflict, Unavailable
from boxd.model.idempotent import IdempotentRequest
from boxd.secret import random_hex

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from boxd.clock import Clock
    from boxd.operations.shared.vault import Vault
    from boxd.principal import Principal
    from boxd.store.interface import ControlStore

LIVES = timedelta(hours=24)
"""Time for which the service remembers a request."""
MAX_REQUESTS = 1000
"""Maximum number of remembered requests of one owner; a new one replaces the oldest."""
MAX_BODY = 256 * 1024
"""Maximum size of a remembered response, in characters."""
KEY = re.compile("[!-~]{1,255}")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Outcome:
    """A successful response. `replayed`: an earlier request with the same key was answered so."""

    status: int
    body: str
    replayed: bool = False


class IdempotentRequests:
    """Does requests with an idempotency key once.

    Critical section: `_running` has the keys of the requests that this process is doing. No method
    awaits between looking for a key there and adding it.
    """

    def __init__(self, store: ControlStore, vault: Vault, clock: Clock) -> None:
        self._store = store
        self._vault = vault
        self._clock = clock
        self._running: set[tuple[str, bytes]] = set()

    async def once(
        self, p: Principal, key: str, request: bytes, work: Callable[[], Awaitable[Outcome]]
    ) -> Outcome:
        """Do `work`, or return the outcome of the earlier request with this key.

        `request` is the content of the request. Raises BadRequest for a bad key, or if the earlier
        request had another content; Conflict while the earlier request runs, or if its outcome is
        not known. If `work` fails, the key is free again.
        """
        if KEY.fullmatch(key) is None:
            raise BadRequest("an idempotency key has 1 to 255 printable characters, without spaces")
        key_sha256 = hashlib.sha256(f"{p.key_id}\0{key}".encode()).digest()
        place = p.owner, key_sha256
        if place in self._running:
            raise Conflict(
                "an earlier request with this idempotency key is still running; send it again later"
            )
        self._running.add(place)
        try:
            return await self._once(p, key_sha256, hashlib.sha256(request).digest(), work)
        finally:
            self._running.discard(place)

    async def _once(
        self,
        p: Principal,
        key_sha256: bytes,
        request_sha256: bytes,
        work: Callable[[], Awaitable[Outcome]],
    ) -> Outcome:
        now = self._clock.now()
        await self._store.trim_requests(p.owner, now - LIVES, MAX_REQUESTS - 1)
        attempt = IdempotentRequest(p.owner, key_sha256, request_sha256, random_hex(16), now)
        stored = await self._store.start_request(attempt)
        if stored.attempt != attempt.attempt:
            return self._earlier(stored, request_sha256)
        try:
            outcome = await work()
        except BaseException:
            await self._free(attempt)
            raise
        if outcome.status >= 300 or len(outcome.body) > MAX_BODY:
            await self._free(attempt)
            return outcome
        sealed = self._vault.seal_response(p.owner, key_sha256, outcome.body)
        try:
            await self._store.finish_request(attempt, outcome.status, sealed)
        except Unavailable as error:
            # The request is done, and the client learns so. A repeated request is refused.
            _log.warning("the response to an idempotent request is not stored: %s", error)
        return outcome

    def _earlier(self, stored: IdempotentRequest, request_sha256: bytes) -> Outcome:
        if stored.request_sha256 != request_sha256:
            raise BadRequest(
                "an earlier request with this idempotency key had another content; use a new key"
            )
        if stored.status is None or stored.sealed is None:
            raise Conflict(
                "the outcome of the earlier request with this idempotency key is not known, because"
                " the service stopped meanwhile; look whether it was done, and use a new key"
            )
        body = self._vault.open_response(stored.owner, stored.key_sha256, stored.sealed)
        return Outcome(stored.status, body, replayed=True)

    async def _free(self, attempt: IdempotentRequest) -> None:
        try:
            await self._store.drop_request(attempt)
        except Unavailable as error:
            _log.warning("an idempotency key stays taken for a day: %s", error)
