"""Errors of the service. Each class has an HTTP status and an SSH exit status.

::

    BoxdError 500
    ├── BadRequest 400
    │   ├── BadName            a spec, reference, name or duration that does not parse
    │   ├── UnknownImage       no such image or flavor
    │   └── Unsupported        the backend cannot do it
    ├── InvalidKey 401         the same text for every reason
    ├── Forbidden 403
    │   └── Confidential       only the SSH server inside the box gives access
    ├── NotFound 404
    │   └── InvalidShare       always the same text
    ├── Conflict 409
    │   ├── Ambiguous          names the candidates
    │   └── Pinned             a pin protects the box from removal
    ├── PreconditionFailed 412 ├── TooLarge 413          ├── BadRange 416
    ├── QuotaExceeded 429      ├── NothingListening 502  ├── BadAnswer 502
    ├── Unavailable 503
    ├── DialTimeout 504        ├── DriveFull 507
    ├── DiskFull 507           └── MemoryLost 500

Users see the text of an error. It says what happened, to what, and what to do next. It contains no
secret and nothing about another owner.
"""

from __future__ import annotations

from typing import ClassVar


class BoxdError(Exception):
    """Base class of all refusals and expected failures of the service."""

    http_status: ClassVar[int] = 500
    exit_status: ClassVar[int] = 1
    retry_after_s: ClassVar[int | None] = None
    """Seconds after which the same request may succeed; None: it will not, by itself."""


class BadRequest(BoxdError):
    """The request is not valid."""

    http_status = 400


class BadName(BadRequest):
    """A box spec, reference, name or duration that does not parse."""

    exit_status = 2


class UnknownImage(BadRequest):
    """No such image or flavor."""


class Unsupported(BadRequest):
    """The backend does not support the request."""


class InvalidKey(BoxdError):
    """Missing, unknown, revoked or expired API key. The text does not tell which.

    A connection that ends because its key or share has ended gets another text with the reason.
    """

    http_status = 401

    def __init__(self, text: str = "invalid API key") -> None:
        super().__init__(text)


class Forbidden(BoxdError):
    """The caller is authenticated, but not allowed to do this."""

    http_status = 403


class Confidential(Forbidden):
    """The box accepts connections only through the relay; the text has the command for it."""


class NotFound(BoxdError):
    """No object of the caller matches. Objects of other owners count as missing."""

    http_status = 404


class InvalidShare(NotFound):
    """Unknown, revoked or expired share, or its box is removed. The text does not tell which."""

    def __init__(self) -> None:
        super().__init__("this share link is not valid or has expired; ask its owner for a new one")


class Conflict(BoxdError):
    """The current state does not allow the request."""

    http_status = 409


class Pinned(Conflict):
    """A pin protects the box from removal. `fact` is the text without the remedy."""

    def __init__(self, fact: str, remedy: str = "") -> None:
        super().__init__(f"{fact}. {remedy}" if remedy else fact)
        self.fact = fact


class Ambiguous(Conflict):
    """A reference matches several boxes. The text names them with their ids."""


class PreconditionFailed(BoxdError):
    """The condition in If-Match or If-None-Match is false."""

    http_status = 412


class TooLarge(BoxdError):
    """The input or output is larger than the request or the answer can carry."""

    http_status = 413


class BadRange(BoxdError):
    """The range starts after the end of the file."""

    http_status = 416


class QuotaExceeded(BoxdError):
    """The request exceeds a limit of the owner. The text names the limit and its value."""

    http_status = 429
    retry_after_s = 10


class NothingListening(BoxdError):
    """No program listens at the target port in the box."""

    http_status = 502


class BadAnswer(BoxdError):
    """The program at the target port in the box gives no answer, or an answer that is not valid."""

    http_status = 502


class Unavailable(BoxdError):
    """A part of the service that the request needs is down or disabled."""

    http_status = 503
    retry_after_s = 2


class DialTimeout(BoxdError):
    """The target in the box did not answer before the deadline."""

    http_status = 504


class DriveFull(BoxdError):
    """The drive's quota is used up, or the store is full."""

    http_status = 507


class DiskFull(BoxdError):
    """The host's disk for boxes has too little free space."""

    http_status = 507


class RootHeld(Unavailable):
    """A host process still uses the root of a stopped box, which cannot start until it ends."""


class AgentLost(BoxdError):
    """The agent of a running box has ended and cannot restart by itself."""


class MemoryLost(BoxdError):
    """The memory of a suspended box cannot be restored. Its disk can."""
