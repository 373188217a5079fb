"""Requests with an idempotency key as stored, so that a repeated request is not done twice."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import datetime


@dataclass(frozen=True, slots=True)
class IdempotentRequest:
    """One request with an idempotency key.

    `key_sha256` is the digest of the key and the credential, `request_sha256` that of the request.
    `attempt` is the id of the call that started the request. `status` None: the request has not
    ended, or the service stopped before it recorded the end. `sealed` is the encrypted response.
    """

    owner: str
    key_sha256: bytes
    request_sha256: bytes
    attempt: str
    started: datetime
    status: int | None = None
    sealed: bytes | None = field(default=None, repr=False)
