"""JSON-RPC as text: reading strictly what a client sends, writing what it is sent.

What cannot be read is answered with the protocol's own errors: -32700 for what is no JSON, -32600
for what is JSON and not one message.
"""

from __future__ import annotations

import json
from typing import Any, NoReturn

from boxd.mcp.making import COMPACT

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
ENVELOPE = "io.modelcontextprotocol/protocolVersion"
"""In the `_meta` of each request since 2026-07-28, which has no handshake."""


class Unreadable(Exception):
    """A message that is none. `answer` is what the client is sent."""

    def __init__(self, code: int, text: str, request_id: str | int | None = None) -> None:
        super().__init__(text)
        self.code = code
        self.answer = error(code, text, request_id)


def read(text: str | bytes) -> dict[str, Any]:
    """One message. Raises Unreadable."""
    try:
        plain = text.decode("utf-8") if isinstance(text, bytes) else text
        found = json.loads(plain, parse_constant=_no_constant)
    except UnicodeDecodeError:
        raise Unreadable(PARSE_ERROR, "the message is not UTF-8") from None
    except (ValueError, RecursionError):
        raise Unreadable(PARSE_ERROR, "the message is not JSON") from None
    if isinstance(found, list):
        raise Unreadable(INVALID_REQUEST, "batches are not served: send one message at a time")
    if not isinstance(found, dict):
        raise Unreadable(INVALID_REQUEST, "the message is not a JSON object")
    return found


def request_id(message: dict[str, Any]) -> str | int | None:
    """The id that an answer to a message has, if it shows one that may be."""
    found = message.get("id")
    return found if isinstance(found, str | int) and not isinstance(found, bool) else None


def is_modern(message: dict[str, Any]) -> bool:
    """Whether it is a request of the protocol without a handshake."""
    params = message.get("params")
    meta = params.get("_meta") if isinstance(params, dict) else None
    return isinstance(meta, dict) and ENVELOPE in meta


def error(code: int, text: str, to: str | int | None) -> str:
    """An error, in answer to a request, or to nobody knows what."""
    return dump({"jsonrpc": "2.0", "id": to, "error": {"code": code, "message": text}})


def notification(method: str, params: dict[str, Any] | None) -> str:
    """A notification."""
    body: dict[str, Any] = {"jsonrpc": "2.0", "method": method}
    return dump(body if params is None else body | {"params": params})


def updated(uri: str | None) -> str:
    """That a resource has changed; None: which resources there are."""
    if uri is None:
        return notification("notifications/resources/list_changed", None)
    return notification("notifications/resources/updated", {"uri": uri})


def dump(message: dict[str, Any]) -> str:
    """One message, in one line."""
    return COMPACT.encode(message)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
