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
    create a directory has no body, because a schema does not express this. Nobody answers
    questions, so a wait for an answer takes a second. JSON Schema counts 28.0 as an integer; the
    service does not.
    """
    del ctx, kwargs
    for name in ("If-Match", "If-None-Match"):
        if case.headers.get(name) == "0":
            del case.headers[name]
    if case.method == "PUT" and str(case.path_parameters.get("path", "")).endswith("/"):
        case.body = b""
    for values in (case.body, case.query):
        if isinstance(values, dict):
            values.update({name: _corrected(name, value) for name, value in values.items()})


def _corrected(name: str, value: Any) -> Any:  # noqa: ANN401 - any JSON, as schemathesis types it
    """Return the value of a field: no long waits, and no integers with a decimal point."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return min(int(value), 1) if name == "wait_s" and str(value).isdigit() else value
