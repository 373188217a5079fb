"""JSON-RPC as text: reading strictly what a client sends, writing what it is sent.

What cannot be read is answered with the protocol's own errors: -32700 for what is no JSON, -32600
for what is JSON and not one message.
"""

from __future__ import annotations

import json
from typing import Any, NoReturn

from boxd.mcp.messages.encoding import COMPACT

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
ENVELOPE = "io.modelcontextprotocol/protocolVersion"
"""In the `_meta` of each request since 2026-07-28, which has no handshake."""


MAX_VALUES = 10_000
"""Strings, members of arrays and objects, arrays and objects in one message; a call has at most
some hundred. A message of 16 MiB can hold five million, whose reading takes the loop for seconds
(*measured*: 4.3 s and 0.4 GiB)."""


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
        if _values(plain.encode("utf-8", "surrogatepass")) > MAX_VALUES:
            raise Unreadable(INVALID_REQUEST, f"the message has more than {MAX_VALUES} values")
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


def _values(data: bytes) -> int:
    """Values of a message, or somewhat more; the content of strings does not count."""
    if _count(data, b'",[{') <= MAX_VALUES:
        return 0
    bare = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    strings = bare.count(b'"') // 2
    if strings > MAX_VALUES:
        return strings
    return strings + _count(b"".join(bare.split(b'"')[::2]), b",[{")


def _count(data: bytes, characters: bytes) -> int:
    return len(data) - len(data.translate(None, characters))


def request_id(message: dict[str, Any]) -> str | int | None:
    """The id that an answer to a message has, if it shows one that may be."""
    found = message.get("id")
    if isinstance(found, str):
        return found if found.isascii() or _is_unicode(found) else None
    return found if isinstance(found, int) and not isinstance(found, bool) else None


def _is_unicode(text: str) -> bool:
    """Whether text has no lone surrogate, which answers would repeat."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


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
