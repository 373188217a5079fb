"""Hooks that schemathesis loads: they encode our own body type, and correct invalid requests.

Schemathesis makes up the standard input of a command. `test_api_exec_limits` tests its header line.
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
    """Correct the boundary values of schemathesis.

    It fills entity tags with `0`, whatever their pattern is. It also cannot know that a request to
    create a directory has no body, because a schema does not express this. It does not wait for the
    answers to questions, which nobody gives.
    """
    del ctx, kwargs
    for name in ("If-Match", "If-None-Match"):
        if case.headers.get(name) == "0":
            del case.headers[name]
    if case.method == "PUT" and str(case.path_parameters.get("path", "")).endswith("/"):
        case.body = b""
    for values in (case.body, case.query):
        wait_s = values.get("wait_s") if isinstance(values, dict) else None
        if isinstance(values, dict) and isinstance(wait_s, int):
            values["wait_s"] = min(wait_s, 1)
