"""Protocol adapter only. Authentication by an API key in a request.

The service reads `Authorization: Bearer`, then `X-Api-Key`, then, on paths for browsers, `?key=`:
browsers cannot set headers on every request. The first one that is present decides. All invalid
keys get the same answer, regardless of the reason.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from boxd.http.requests.exchange import record_of
from boxd.http.requests.headers import header, query_values

if TYPE_CHECKING:
    from collections.abc import Iterable

    from starlette.types import Scope

    from boxd.operations import Operations
    from boxd.principal import Principal


def presented_key(lines: Iterable[tuple[bytes, bytes]], query: bytes | None = None) -> str | None:
    """Return the key that a request carries, or None if it carries none in a supported form.

    `query`: the query string if `?key=` is allowed; None: it is not.
    """
    lines = list(lines)
    authorization = header(lines, b"authorization")
    if authorization is not None:
        scheme, _, credential = authorization.decode("latin-1").partition(" ")
        return credential.strip() if scheme.lower() == "bearer" else None
    plain = header(lines, b"x-api-key")
    if plain is not None:
        return plain.decode("latin-1")
    keys = query_values(query, b"key") if query is not None else []
    return keys[0].decode("latin-1") if keys else None


async def authenticate(
    scope: Scope, operations: Operations, *, query_key: bool = False
) -> Principal:
    """Return the principal of a request's key, and count the request for its owner.

    `query_key`: whether `?key=` is allowed. Raises InvalidKey for a missing, malformed, unknown,
    revoked or expired key, and QuotaExceeded when the owner has too many requests in progress.
    """
    query = scope["query_string"] if query_key else None
    principal = await operations.keys.principal_of_key(presented_key(scope["headers"], query))
    enter(scope, operations, principal)
    return principal


def enter(scope: Scope, operations: Operations, principal: Principal) -> None:
    """Record the principal and the source address of a request. Raises QuotaExceeded."""
    client = scope.get("client")
    operations.callers.came(principal, client[0] if client else "")
    record_of(scope).enter(principal)
