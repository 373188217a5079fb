"""For schemathesis, which loads it: how a body of our own type is written, and no header that is
said to be good and is not.

What is made up is a command's standard input; its header is tried in `test_api_exec_limits`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import schemathesis

if TYPE_CHECKING:
    from schemathesis import Case, HookContext

HEADER = b'{"cmd": "true"}\n'


@schemathesis.serializer("application/x-svc-exec")
def exec_body(ctx: schemathesis.SerializationContext, value: object) -> bytes:
    """A header line, and a value behind it."""
    del ctx
    return HEADER + (value if isinstance(value, bytes) else str(value).encode("utf-8", "replace"))


@schemathesis.hook
def before_call(ctx: HookContext, case: Case[Any], kwargs: dict[str, Any]) -> None:
    """Its phase of boundaries fills entity tags with `0`, whatever their pattern says; and that a
    directory is made without a body is nothing that a schema can tell."""
    del ctx, kwargs
    for name in ("If-Match", "If-None-Match"):
        if case.headers.get(name) == "0":
            del case.headers[name]
    if case.method == "PUT" and str(case.path_parameters.get("path", "")).endswith("/"):
        case.body = b""
