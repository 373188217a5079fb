"""Messages between the two parts of the service, as MessagePack."""

from __future__ import annotations

import os
from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta, Struct

from boxd import errors
from boxd.errors import BoxdError, Unavailable
from boxd.privileged.calls import AnyCall

CALL_MAX = 128 * 1024
"""Maximum size of a message to the part that needs root, in bytes."""
ANSWER_MAX = 64 * 1024 * 1024
"""Maximum size of a message from it, in bytes. A list of boxes has about 50 for each box."""
CallId: TypeAlias = Annotated[int, Meta(ge=0, le=1 << 53)]
INTERNAL = (
    "an internal error in the part of the service that needs root; its log has the reason; "
    "try again, and tell the operator if it stays"
)
_ERRORS = {
    kind.__name__: kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, BoxdError)
}


class Request(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="call"):
    """A call. `id` is not in use by another call of the connection."""

    id: CallId
    call: AnyCall


class Cancel(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="cancel"):
    """Asks for the cancellation of a call, which still gets its answer."""

    id: CallId


class Answer(Struct, frozen=True, array_like=True, tag="answer"):
    """The result of a call. Its descriptors travel with the message."""

    id: CallId
    value: msgspec.Raw


class Failure(Struct, frozen=True, array_like=True, tag="failure"):
    """The error of a call. `kind` is the name of a class of `boxd.errors`, or "OSError"."""

    id: CallId
    kind: str
    text: str
    number: int = 0
    """errno of an OSError."""


class Cancelled(Struct, frozen=True, array_like=True, tag="cancelled"):
    """A call was cancelled, and has ended."""

    id: CallId


class Restarted(Struct, frozen=True, array_like=True, tag="restarted"):
    """The mount of a volume crashed and runs again."""

    volume: str


class Step(Struct, frozen=True, array_like=True, tag="step"):
    """A line for the operator about a step that may take long."""

    text: str


ToPrivileged: TypeAlias = Request | Cancel
FromPrivileged: TypeAlias = Answer | Failure | Cancelled | Restarted | Step

encode = msgspec.msgpack.Encoder().encode
decode_request = msgspec.msgpack.Decoder(ToPrivileged).decode
decode_answer = msgspec.msgpack.Decoder(FromPrivileged).decode


def failure_of(number: int, error: BaseException) -> Failure:
    """Return the message of an error. The text of an unexpected error stays in this process."""
    if isinstance(error, BoxdError):
        text = str(error).encode(errors="replace").decode()  # a path may have any bytes
        return Failure(number, type(error).__name__, text)
    if isinstance(error, OSError) and error.errno:  # a TimeoutError of asyncio has no number
        text = error.strerror or os.strerror(error.errno)
        return Failure(number, "OSError", text, error.errno)
    return Failure(number, "Unavailable", INTERNAL)


def error_of(failure: Failure) -> Exception:
    """Return the error of a message."""
    if failure.kind == "OSError":
        return OSError(failure.number, failure.text)
    kind = _ERRORS.get(failure.kind, Unavailable)
    # The classes build their texts in different ways; the text of the message is complete.
    error = kind.__new__(kind)
    error.args = (failure.text,)
    return error
