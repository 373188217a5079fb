"""JSON-RPC as text: strict parsing of client messages, and encoding of server messages.

The answer to an invalid message is an error of the protocol: -32700 for text that is not JSON, and
-32600 for JSON that is not one message.
"""

from __future__ import annotations

import json
from typing import Any, NoReturn

from boxd.mcp.messages.encoding import COMPACT

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
VERSION_KEY = "io.modelcontextprotocol/protocolVersion"
"""Since protocol version 2026-07-28 there is no handshake: the `_meta` of each request has it."""


MAX_VALUES = 10_000
"""Maximum number of strings, members, arrays and objects in one message. A call has at most a few
hundred. A message of 16 MiB can hold five million; parsing it would stop the event loop for seconds
(*measured*: 4.3 s and 0.4 GiB)."""


class InvalidMessage(Exception):
    """The text is not a valid message. `answer` is the error response for the client."""

    def __init__(self, code: int, text: str, request_id: str | int | None = None) -> None:
        super().__init__(text)
        self.code = code
        self.answer = error_response(code, text, request_id)


def parse(text: str | bytes) -> dict[str, Any]:
    """Parse one message. Raises InvalidMessage."""
    try:
        plain = text.decode("utf-8") if isinstance(text, bytes) else text
        if _count_values(plain.encode("utf-8", "surrogatepass")) > MAX_VALUES:
            raise InvalidMessage(
                INVALID_REQUEST, f"the message has more than {MAX_VALUES} values; send fewer"
            )
        message = json.loads(plain, parse_constant=_reject_constant)
    except UnicodeDecodeError:
        raise InvalidMessage(PARSE_ERROR, "the message is not UTF-8") from None
    except (ValueError, RecursionError):
        raise InvalidMessage(PARSE_ERROR, "the message is not JSON") from None
    if isinstance(message, list):
        raise InvalidMessage(
            INVALID_REQUEST, "batches are not supported; send one message at a time"
        )
    if not isinstance(message, dict):
        raise InvalidMessage(INVALID_REQUEST, "the message is not a JSON object")
    return message


def _count_values(data: bytes) -> int:
    """Return the number of values, or somewhat more. The content of strings does not count."""
    if _count_bytes(data, b'",[{') <= MAX_VALUES:
        return 0
    unescaped = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    strings = unescaped.count(b'"') // 2
    if strings > MAX_VALUES:
        return strings
    return strings + _count_bytes(b"".join(unescaped.split(b'"')[::2]), b",[{")


def _count_bytes(data: bytes, characters: bytes) -> int:
    return len(data) - len(data.translate(None, characters))


def request_id(message: dict[str, Any]) -> str | int | None:
    """Return the id for the answer to a message; None if the message has no valid id."""
    value = message.get("id")
    if isinstance(value, str):
        return value if value.isascii() or _is_unicode(value) else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _is_unicode(text: str) -> bool:
    """Return whether text has no lone surrogate, which the answer would repeat."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def is_modern(message: dict[str, Any]) -> bool:
    """Return whether a message is a request of the protocol without a handshake."""
    params = message.get("params")
    meta = params.get("_meta") if isinstance(params, dict) else None
    return isinstance(meta, dict) and VERSION_KEY in meta


def error_response(code: int, text: str, to: str | int | None) -> str:
    """Encode an error response. `to` is the id of the request; None: the id is not known."""
    return dump({"jsonrpc": "2.0", "id": to, "error": {"code": code, "message": text}})


def notification(method: str, params: dict[str, Any] | None) -> str:
    """Encode a notification."""
    body: dict[str, Any] = {"jsonrpc": "2.0", "method": method}
    return dump(body if params is None else body | {"params": params})


def resource_updated(uri: str | None) -> str:
    """Encode the notification that a resource changed; None: the list of resources changed."""
    if uri is None:
        return notification("notifications/resources/list_changed", None)
    return notification("notifications/resources/updated", {"uri": uri})


def dump(message: dict[str, Any]) -> str:
    """Encode one message in one line."""
    return COMPACT.encode(message)


def _reject_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
