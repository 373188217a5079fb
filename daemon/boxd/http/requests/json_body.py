"""Protocol adapter only. Request bodies in JSON, checked against the structure of the route.

A structure is a `msgspec.Struct` that forbids unknown fields. The OpenAPI document describes the
body from the same structure, so the description and the check cannot differ.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import msgspec

from boxd.errors import BadRequest, TooLarge
from boxd.http.requests.body import IDLE_S, Body
from boxd.http.requests.errors import Refusal
from boxd.http.requests.headers import header, media_type

if TYPE_CHECKING:
    from starlette.types import Message, Receive, Scope

MAX_JSON = 1024 * 1024
"""Maximum size of a JSON body, in bytes."""
JSON = "application/json"
_EMPTY = b"{}"
Form = TypeVar("Form", bound=msgspec.Struct)


class JsonForm(msgspec.Struct, forbid_unknown_fields=True):
    """Base of all structures of request bodies."""


async def read_json(scope: Scope, receive: Receive, form: type[Form]) -> Form:
    """Return the body of a request as a `form`; an empty body counts as `{}`.

    Raises Refusal (415) for another media type and (408) for a client that pauses, TooLarge,
    BadRequest with the wrong field, and ClientGone.
    """
    return parse_json(await read_body(scope, receive), form)


def parse_json(data: bytes, form: type[Form]) -> Form:
    """Return a JSON text as a `form`; no text counts as `{}`. Raises BadRequest."""
    try:
        return msgspec.json.decode(data or _EMPTY, type=form)
    except msgspec.ValidationError as error:
        raise BadRequest(f"the request body is not valid: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise BadRequest("the request body is not JSON in UTF-8") from None


async def read_body(scope: Scope, receive: Receive) -> bytes:
    """Return the whole body of a request, which is empty or has the media type of JSON.

    Raises Refusal, TooLarge and ClientGone as `read_json` does.
    """
    data = await Body(receive, idle=IDLE_S).whole(MAX_JSON)
    if data is None:
        raise TooLarge(f"the request body is longer than {MAX_JSON} bytes; send less")
    if data and media_type(header(scope["headers"], b"content-type")) != JSON:
        raise Refusal(415, f"the request body must have Content-Type: {JSON}", [])
    return data


def sent_again(body: bytes) -> Receive:
    """Return a function that receives a body that was read before."""
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        return messages.pop() if messages else {"type": "http.disconnect"}

    return receive
