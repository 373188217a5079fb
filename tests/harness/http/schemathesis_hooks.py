"""Hooks that schemathesis loads: the encoding of our own body type, and corrections of headers.

The corrections remove headers that schemathesis wrongly declares valid. It makes up the standard
input of a command; `test_api_exec_limits` tests the header of the command.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import schemathesis

if TYPE_CHECKING:
    from schemathesis import Case, HookContext

HEADER = b'{"cmd": "true"}\n'


@schemathesis.serializer("application/x-svc-exec")
def exec_body(ctx: schemathesis.SerializationContext, value: object) -> bytes:
    """Return a header line, followed by a value."""
    del ctx
    return HEADER + (value if isinstance(value, bytes) else str(value).encode("utf-8", "replace"))


@schemathesis.hook
def before_call(ctx: HookContext, case: Case[Any], kwargs: dict[str, Any]) -> None:
    """Correct the values of the phase of boundaries.

    It fills entity tags with `0`, whatever their pattern is. A schema also cannot express that the
    creation of a directory has no body.
    """
    del ctx, kwargs
    for name in ("If-Match", "If-None-Match"):
        if case.headers.get(name) == "0":
            del case.headers[name]
    if case.method == "PUT" and str(case.path_parameters.get("path", "")).endswith("/"):
        case.body = b""
