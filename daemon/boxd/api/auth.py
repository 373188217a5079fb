"""Protocol adapter only. API keys in requests: `Authorization: Bearer` or `X-Api-Key`.

The first of the two that is present decides. Whatever is wrong with it, the answer is the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from boxd.api.guard import exchange_of
from boxd.api.headers import header

if TYPE_CHECKING:
    from collections.abc import Iterable

    from starlette.types import Scope

    from boxd.operations import Operations
    from boxd.principal import Principal


def presented_key(lines: Iterable[tuple[bytes, bytes]]) -> str | None:
    """The key that a request shows; None when it shows none or in no way that is read."""
    lines = list(lines)
    authorization = header(lines, b"authorization")
    if authorization is None:
        plain = header(lines, b"x-api-key")
        return None if plain is None else plain.decode("latin-1")
    scheme, _, credential = authorization.decode("latin-1").partition(" ")
    return credential.strip() if scheme.lower() == "bearer" else None


async def authenticate(scope: Scope, operations: Operations) -> Principal:
    """Who asks. Raises InvalidKey for a missing, malformed, unknown, revoked or expired key."""
    principal = await operations.principal_of_key(presented_key(scope["headers"]))
    client = scope.get("client")
    operations.came(principal, client[0] if client else "")
    exchange_of(scope).principal = principal.key_id or "-"
    return principal
