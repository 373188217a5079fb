"""Protocol adapter only. API keys in requests: `Authorization: Bearer`, `X-Api-Key`, and `?key=`
where browsers come, which cannot set headers on everything.

The first that is present decides. Whatever is wrong with it, the answer is the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from boxd.api.exchange import record_of
from boxd.api.headers import header, query_values

if TYPE_CHECKING:
    from collections.abc import Iterable

    from starlette.types import Scope

    from boxd.operations import Operations
    from boxd.principal import Principal


def presented_key(lines: Iterable[tuple[bytes, bytes]], query: bytes | None = None) -> str | None:
    """The key that a request shows; None when it shows none or in no way that is read.

    `query`: the query string, where `?key=` is read as well.
    """
    lines = list(lines)
    authorization = header(lines, b"authorization")
    if authorization is not None:
        scheme, _, credential = authorization.decode("latin-1").partition(" ")
        return credential.strip() if scheme.lower() == "bearer" else None
    plain = header(lines, b"x-api-key")
    if plain is not None:
        return plain.decode("latin-1")
    shown = query_values(query, b"key") if query is not None else []
    return shown[0].decode("latin-1") if shown else None


async def authenticate(
    scope: Scope, operations: Operations, *, query_key: bool = False
) -> Principal:
    """Who asks. Raises InvalidKey for a missing, malformed, unknown, revoked or expired key,
    QuotaExceeded when too many requests of the owner are served.

    `query_key`: `?key=` counts too.
    """
    query = scope["query_string"] if query_key else None
    principal = await operations.principal_of_key(presented_key(scope["headers"], query))
    enter(scope, operations, principal)
    return principal


def enter(scope: Scope, operations: Operations, principal: Principal) -> None:
    """Notes who a request is of, and where it comes from. QuotaExceeded."""
    client = scope.get("client")
    operations.came(principal, client[0] if client else "")
    record_of(scope).enter(principal)
