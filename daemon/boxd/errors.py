"""Errors of the service; each class carries its HTTP status and SSH exit status.

::

    BoxdError 500
    ├── BadRequest 400
    │   ├── BadName            a spec, reference, name or duration that does not parse
    │   ├── UnknownImage       no such image or flavor
    │   └── Unsupported        the backend cannot do it
    ├── InvalidKey 401         one text for whatever is wrong with a key that is shown
    ├── Forbidden 403
    │   └── Confidential       a box that only its own SSH server opens
    ├── NotFound 404
    │   └── InvalidShare       always the same text
    ├── Conflict 409
    │   └── Ambiguous          names the candidates
    ├── PreconditionFailed 412 ├── TooLarge 413          ├── BadRange 416
    ├── QuotaExceeded 429      ├── NothingListening 502  ├── BadAnswer 502
    ├── Unavailable 503
    ├── DialTimeout 504        ├── DriveFull 507
    ├── DiskFull 507           └── MemoryLost 500

The text of an error is shown to users: it says what happened, to what, and what to do next, and
holds no secret and nothing of another owner.
"""

from __future__ import annotations

from typing import ClassVar


class BoxdError(Exception):
    """Base of everything the service refuses or fails on purpose."""

    http_status: ClassVar[int] = 500
    exit_status: ClassVar[int] = 1


class BadRequest(BoxdError):
    """The request makes no sense."""

    http_status = 400


class BadName(BadRequest):
    """A box spec, reference, name or duration that does not parse."""

    exit_status = 2


class UnknownImage(BadRequest):
    """No such image or flavor."""


class Unsupported(BadRequest):
    """The backend cannot do this."""


class InvalidKey(BoxdError):
    """Missing, unknown, revoked or expired API key; they are not told apart.

    What a key or share has opened, and may not go on, is told why in a text of its own.
    """

    http_status = 401

    def __init__(self, text: str = "invalid API key") -> None:
        super().__init__(text)


class Forbidden(BoxdError):
    """Known, but not allowed."""

    http_status = 403


class Confidential(Forbidden):
    """The box is reached through the relay alone; the text names the command for it."""


class NotFound(BoxdError):
    """Nothing of the caller's matches. Foreign things are not found either."""

    http_status = 404


class InvalidShare(NotFound):
    """Unknown, revoked or expired share, or its box is gone; they are not told apart."""

    def __init__(self) -> None:
        super().__init__(
            "this share link is not valid (any more); ask who gave it to you for another"
        )


class Conflict(BoxdError):
    """The present state does not allow it."""

    http_status = 409


class Ambiguous(Conflict):
    """A reference matches several boxes; the text names them with their ids."""


class PreconditionFailed(BoxdError):
    """If-Match or If-None-Match did not hold."""

    http_status = 412


class TooLarge(BoxdError):
    """More output or input than this form carries."""

    http_status = 413


class BadRange(BoxdError):
    """The range starts behind the end."""

    http_status = 416


class QuotaExceeded(BoxdError):
    """A limit of the owner; the text names it and its value."""

    http_status = 429


class NothingListening(BoxdError):
    """The target port in the box is closed."""

    http_status = 502


class BadAnswer(BoxdError):
    """What listens at the target port in the box does not answer, or not as it should."""

    http_status = 502


class Unavailable(BoxdError):
    """Something the request needs is out, or not enabled."""

    http_status = 503


class DialTimeout(BoxdError):
    """The target in the box did not answer in time."""

    http_status = 504


class DriveFull(BoxdError):
    """The drive's quota or the store's space is used up."""

    http_status = 507


class DiskFull(BoxdError):
    """The host's disk for boxes has too little room left."""

    http_status = 507


class MemoryLost(BoxdError):
    """The memory of a suspended box cannot be brought back; its disk can."""
