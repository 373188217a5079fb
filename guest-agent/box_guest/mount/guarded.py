"""Wrappers of request handlers: each turns every exception into an errno for the caller."""

from __future__ import annotations

import asyncio
import errno
import functools
import logging
from typing import TYPE_CHECKING, Concatenate, ParamSpec, Protocol, TypeVar, cast

import pyfuse3

from wrkfs.errors import NotFound, WrkfsError
from wrkfs.types import Ino

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any

    from box_guest.mount.watchdog import Watchdog

    P = ParamSpec("P")
    T = TypeVar("T")
    H = TypeVar("H", bound="Handlers")

log = logging.getLogger(__name__)

REQUEST_TIMEOUT = 85.0
"""Seconds after which the mount answers a request with EIO: none may hang for more than 90 s."""


class Handlers(Protocol):
    """The object whose methods are wrapped."""

    watchdog: Watchdog

    def gone(self, ino: Ino, ctx: pyfuse3.RequestContext) -> int:
        """Return the errno of a request for a missing inode."""
        ...


def handler(
    function: Callable[Concatenate[H, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[H, P], Coroutine[Any, Any, T]]:
    """Wrap a request handler: any exception except FUSEError would hang the caller."""

    async def guarded(self: H, /, *args: P.args, **kwargs: P.kwargs) -> T:
        task = self.watchdog.enter()
        try:
            return await function(self, *args, **kwargs)
        except WrkfsError as error:
            raise pyfuse3.FUSEError(error.errno) from None
        except pyfuse3.FUSEError:
            raise
        except asyncio.CancelledError:
            if not self.watchdog.was_late(task):
                raise
            log.error("%s: no answer within %g s", function.__name__, REQUEST_TIMEOUT)
            raise pyfuse3.FUSEError(errno.EIO) from None
        except Exception:
            log.exception("%s failed", function.__name__)
            raise pyfuse3.FUSEError(errno.EIO) from None
        finally:
            self.watchdog.leave(task)

    functools.update_wrapper(guarded, function)
    return guarded


def lasting(
    function: Callable[Concatenate[H, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[H, P], Coroutine[Any, Any, T]]:
    """Wrap a handler as `handler` does, without a time limit: a lock may take as long as it has to.

    Each single call of the drive ends within a time of its own.
    """

    async def guarded(self: H, /, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return await function(self, *args, **kwargs)
        except WrkfsError as error:
            raise pyfuse3.FUSEError(error.errno) from None
        except Exception:
            log.exception("%s failed", function.__name__)
            raise pyfuse3.FUSEError(errno.EIO) from None

    functools.update_wrapper(guarded, function)
    return guarded


def of_inode(
    function: Callable[Concatenate[H, int, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[H, int, P], Coroutine[Any, Any, T]]:
    """Wrap a handler that finds its inode by number: a missing inode is ESTALE, not ENOENT.

    Another client may replace a name between the kernel's LOOKUP and the request that follows. On
    ESTALE, the kernel walks the path again and finds the new file; ENOENT would reach the program.
    The kernel does not walk a third time: an inode of its second walk that is gone gives ENOENT.
    """

    async def found(self: H, inode: int, /, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return await function(self, inode, *args, **kwargs)
        except NotFound:
            # The request's context is the last argument of every handler.
            ctx = cast("pyfuse3.RequestContext", args[-1])
            raise pyfuse3.FUSEError(self.gone(Ino(inode), ctx)) from None

    functools.update_wrapper(found, function)
    return handler(found)
