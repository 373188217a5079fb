"""What every SSH session channel of the front door does: run one task, end after all output.

An exception that leaves a callback of asyncssh closes the whole connection, with every channel of
it. So callbacks here are wrapped: such an exception is logged and ends its own channel only.
"""

from __future__ import annotations

import functools
import logging
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Concatenate, ParamSpec, Protocol, TypeVar

import asyncssh

from boxd.errors import BoxdError
from boxd.names.words import escaped

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Mapping

    from boxd.tasks import BackgroundTasks

    Channel = asyncssh.SSHServerChannel[bytes]

REFUSED = 255
"""Exit status of what the front door itself refuses; OpenSSH uses it for its own errors too."""
MAX_TEXT = 2000

_log = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")


class Abortable(Protocol):
    """What owns one channel and can end it."""

    def abort(self) -> None:
        """Ends the channel at once."""
        ...


S = TypeVar("S", bound=Abortable)


def guarded(
    fallback: R,
) -> Callable[[Callable[Concatenate[S, P], R]], Callable[Concatenate[S, P], R]]:
    """Wraps a callback of asyncssh: an exception ends its channel and gives `fallback`."""

    def wrap(callback: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
        @functools.wraps(callback)
        def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
            try:
                return callback(self, *args, **kwargs)
            except Exception:
                _log.exception("callback %s failed; its channel is closed", callback.__qualname__)
                self.abort()
                return fallback

        return call

    return wrap


@dataclass(frozen=True, slots=True)
class Exit:
    """How a session ended: by `status`, or by `signal` (name, core dumped, message, language)."""

    status: int | None = None
    signal: tuple[str, bool, str, str] | None = None


class Session(asyncssh.SSHServerSession[bytes]):
    """A session channel. Subclasses say in `run` what it does.

    Critical sections: none; every method but `run` is synchronous. `_exit` is set once, by the
    first of `run`'s result and `finish`; it is sent when the output buffer is empty.
    """

    def __init__(self, tasks: BackgroundTasks, released: Callable[[], None]) -> None:
        """`released` is called once, when the channel is closed."""
        self._tasks = tasks
        self._released = released
        self._task: asyncio.Task[None] | None = None
        self._exit: Exit | None = None
        self.chan: Channel
        self.gone = False
        """The channel is closed. Asyncssh fails when such a one is to be read on."""
        self.pty = False

    async def run(self) -> Exit:
        """The work of the channel; a BoxdError from it is shown on stderr and ends in 255."""
        raise NotImplementedError

    def connection_made(self, chan: Channel) -> None:
        """The channel is open."""
        self.chan = chan

    @guarded(False)
    def pty_requested(
        self, term_type: str, term_size: tuple[int, int, int, int], term_modes: Mapping[int, int]
    ) -> bool:
        """Terminals are granted; asyncssh keeps their type, size and modes."""
        self.pty = True
        return True

    def shell_requested(self) -> bool:
        """Shells are granted."""
        return True

    def exec_requested(self, command: str) -> bool:
        """Commands are granted."""
        return True

    def subsystem_requested(self, subsystem: str) -> bool:
        """Only file transfer."""
        return subsystem == "sftp"

    @guarded(None)
    def session_started(self) -> None:
        """Environment, terminal and command are known."""
        self._task = self._tasks.start(self._work(), name="ssh session")

    def break_received(self, msec: int) -> bool:
        """Breaks mean nothing here."""
        return False

    def eof_received(self) -> bool:
        """Input has ended; output goes on."""
        return True

    @guarded(None)
    def resume_writing(self) -> None:
        """The output buffer has room."""
        if self._exit is not None:
            self._send_exit(self._exit)

    @guarded(None)
    def connection_lost(self, exc: Exception | None) -> None:
        """The channel is closed."""
        self.gone = True
        if self._task is not None:
            self._task.cancel()
        self._released()

    def abort(self) -> None:
        """Ends the channel at once."""
        self.chan.abort()

    def finish(self, how: Exit) -> None:
        """Reports the end once all output has been sent. Only the first call counts."""
        if self._exit is not None:
            return
        self._exit = how
        if self.chan.get_write_buffer_size():
            # With limits of zero, resume_writing comes when the buffer is empty.
            self.chan.set_write_buffer_limits(0)
        else:
            self._send_exit(how)

    def tell(self, text: str) -> None:
        """One line on stderr, with what cannot be printed escaped."""
        if not self.chan.is_closing():
            line = escaped(text[:MAX_TEXT]) + ("\r\n" if self.pty else "\n")
            self.chan.write_stderr(line.encode("utf-8", "replace"))

    def _send_exit(self, how: Exit) -> None:
        if how.signal is not None:
            self.chan.exit_with_signal(*how.signal)
        else:
            self.chan.exit(REFUSED if how.status is None else how.status)

    async def _work(self) -> None:
        try:
            self.finish(await self.run())
        except BoxdError as error:
            self.tell(str(error))
            self.finish(Exit(REFUSED))
        except Exception:
            number = secrets.token_hex(4)
            _log.exception("internal error %s", number)
            self.tell(f"internal error ({number})")
            self.finish(Exit(REFUSED))
