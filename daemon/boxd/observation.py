"""Observation of work: the seam between code that works and code that counts or traces it.

Code that does work holds an `Observer` and reports to it. It knows neither metrics nor traces.
`boxd.telemetry` implements observers; without it every report ends in `UNOBSERVED`. No report
awaits, fails, or contains text of a user.
"""

from __future__ import annotations

import asyncio
import functools
from enum import Enum
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar

from boxd.errors import BoxdError, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from contextlib import AbstractContextManager


class Work(Enum):
    """A kind of work with a duration and an outcome. The value is its name in traces."""

    HTTP = "http request"
    """Named after its method and route; its outcome is its status."""
    SSH_CHANNEL = "ssh channel"
    """Named after the kind of channel."""
    MCP_CALL = "mcp call"
    """Named after the tool."""
    ATTACH = "attach"
    """From the request for a running box until the box runs."""
    CREATE = "create box"
    WAKE = "wake box"
    SUSPEND = "suspend box"
    FORK = "fork box"
    REMOVE = "remove box"
    EXEC = "exec"
    QUERY = "query"
    """A statement on the control database, named after its verb and table."""
    DRIVE_CALL = "drive metadata call"
    """A call of the metadata database of a drive, named after its function."""


class Event(Enum):
    """Something that happens at one moment."""

    SSH_CONNECTION = "accepted"
    SSH_LIMITED = "limited"
    """A connection that a limit dropped before the key exchange."""
    SSH_AUTH_FAILED = "failed_auth"
    SSH_NO_AUTH = "no_auth"
    SSH_MALFORMED = "malformed"
    SSH_GRACE_EXCEEDED = "grace_exceeded"


class Observation(Protocol):
    """One piece of work in progress."""

    def end_as(self, name: str, outcome: str) -> None:
        """Set the name and the outcome of the work, for work that knows them only at its end.

        Both come from a small fixed set.
        """
        ...


class Observer(Protocol):
    """Receives reports about work."""

    def work(
        self, work: Work, name: str = "", parent: str = ""
    ) -> AbstractContextManager[Observation]:
        """Return a context that lasts as long as the work.

        `name` comes from a small fixed set. `parent` is the `traceparent` of the caller. An
        exception that leaves the context decides the outcome, as `outcome_of` does.
        """
        ...

    def event(self, event: Event) -> None:
        """Report an event."""
        ...


class _Unobserved:
    """Implements `Observer` and `Observation`, and ignores every report. It has no state."""

    def work(self, work: Work, name: str = "", parent: str = "") -> _Unobserved:
        return self

    def event(self, event: Event) -> None:
        return

    def end_as(self, name: str, outcome: str) -> None:
        return

    def __enter__(self) -> _Unobserved:
        return self

    def __exit__(self, *_: object) -> None:
        return


UNOBSERVED: Observer = _Unobserved()
"""Ignores every report."""

OK, REFUSED, FAILED, CANCELLED = OUTCOMES = ("ok", "refused", "failed", "cancelled")
"""Outcomes: success; a refusal of the request; a failure of the service; the caller went away."""


def outcome_of(error: BaseException | None) -> str:
    """Return the outcome of work that ended with `error`, or with success."""
    if error is None:
        return OK
    if isinstance(error, asyncio.CancelledError | GeneratorExit):
        return CANCELLED
    if isinstance(error, BoxdError) and not isinstance(error, Unavailable):
        return REFUSED
    return FAILED


class Observing(Protocol):
    """An object with methods that `observed` wraps."""

    @property
    def observer(self) -> Observer:
        """Receives the reports of its methods."""
        ...


P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S", bound=Observing)


def observed(
    work: Work,
) -> Callable[
    [Callable[Concatenate[S, P], Coroutine[Any, Any, R]]],
    Callable[Concatenate[S, P], Coroutine[Any, Any, R]],
]:
    """Wrap a method of an object that has an `observer`: each call is a piece of work."""

    def wrap(
        method: Callable[Concatenate[S, P], Coroutine[Any, Any, R]],
    ) -> Callable[Concatenate[S, P], Coroutine[Any, Any, R]]:
        @functools.wraps(method)
        async def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
            with self.observer.work(work):
                return await method(self, *args, **kwargs)

        return call

    return wrap


class Waiting:
    """The number of tasks that wait for something. No method awaits."""

    def __init__(self) -> None:
        self.count = 0

    def __enter__(self) -> None:
        self.count += 1

    def __exit__(self, *_: object) -> None:
        self.count -= 1
