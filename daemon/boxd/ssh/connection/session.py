"""The base of all SSH session channels: it runs one task, and ends after all output is sent.

An exception that leaves a callback of asyncssh closes the whole connection with all its channels.
So this module wraps the callbacks: it logs an exception, and ends only the channel of the callback.
"""

from __future__ import annotations

import functools
import logging
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Concatenate, ParamSpec, Protocol, TypeVar

import asyncssh

from boxd.errors import BoxdError
from boxd.names.words import escaped
from boxd.observation import UNOBSERVED, Work

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Mapping

    from boxd.observation import Observer
    from boxd.tasks import BackgroundTasks

    Channel = asyncssh.SSHServerChannel[bytes]

ERROR_STATUS = 255
"""Exit status of errors of the daemon itself; OpenSSH uses it for its own errors, too."""
MAX_LINE = 2000
"""Maximum length of one line that the daemon writes to stderr, in characters."""

_log = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")


class Abortable(Protocol):
    """The owner of one channel."""

    def abort(self) -> None:
        """End the channel at once."""
        ...


S = TypeVar("S", bound=Abortable)


def guarded(
    fallback: R,
) -> Callable[[Callable[Concatenate[S, P], R]], Callable[Concatenate[S, P], R]]:
    """Wrap a callback of asyncssh. After an exception, close the channel and return `fallback`."""

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
    """A session channel. Subclasses implement its work in `run`.

    Critical sections: none; every method but `run` is synchronous. The result of `run` or the first
    call of `finish` sets `_exit` once. The session sends it when the output buffer is empty.
    """

    def __init__(self, tasks: BackgroundTasks, on_closed: Callable[[], None]) -> None:
        """`on_closed` is called once, when the channel is closed."""
        self._tasks = tasks
        self._on_closed = on_closed
        self._task: asyncio.Task[None] | None = None
        self._exit: Exit | None = None
        self.chan: Channel
        self.observer: Observer = UNOBSERVED
        """Receives a report about the work of the channel."""
        self.closed = False
        """Whether the channel is closed. asyncssh fails if a closed channel resumes reading."""
        self.pty = False
        """Whether the client asked for a terminal."""

    kind: ClassVar[str]
    """The kind of channel, for the observer."""

    async def run(self) -> Exit:
        """Do the work of the channel. A BoxdError is written to stderr; the status is then 255."""
        raise NotImplementedError

    def connection_made(self, chan: Channel) -> None:
        """Store the open channel."""
        self.chan = chan

    @guarded(False)
    def pty_requested(
        self, term_type: str, term_size: tuple[int, int, int, int], term_modes: Mapping[int, int]
    ) -> bool:
        """Grant a terminal; asyncssh stores its type, size and modes."""
        self.pty = True
        return True

    def shell_requested(self) -> bool:
        """Grant a shell."""
        return True

    def exec_requested(self, command: str) -> bool:
        """Grant a command."""
        return True

    def subsystem_requested(self, subsystem: str) -> bool:
        """Grant file transfer and no other subsystem."""
        return subsystem == "sftp"

    @guarded(None)
    def session_started(self) -> None:
        """Start the work: environment, terminal and command are known now."""
        self._task = self._tasks.start(self._work(), name="ssh session")

    def break_received(self, msec: int) -> bool:
        """Ignore a break."""
        return False

    def eof_received(self) -> bool:
        """Leave the channel open for output after the end of input."""
        return True

    @guarded(None)
    def resume_writing(self) -> None:
        """Send the exit status once the output buffer has room."""
        if self._exit is not None:
            self._send_exit(self._exit)

    @guarded(None)
    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the work, because the channel is closed."""
        self.closed = True
        if self._task is not None:
            self._task.cancel()
        self._on_closed()

    def abort(self) -> None:
        """End the channel at once."""
        self.chan.abort()

    def finish(self, session_exit: Exit) -> None:
        """Report the end once all output has been sent. Only the first call counts."""
        if self._exit is not None:
            return
        self._exit = session_exit
        if self.chan.get_write_buffer_size():
            # With limits of zero, asyncssh calls resume_writing when the buffer is empty.
            self.chan.set_write_buffer_limits(0)
        else:
            self._send_exit(session_exit)

    def write_stderr_line(self, text: str) -> None:
        """Write one line to stderr, with unprintable characters escaped."""
        if not self.chan.is_closing():
            line = escaped(text[:MAX_LINE]) + ("\r\n" if self.pty else "\n")
            self.chan.write_stderr(line.encode("utf-8", "replace"))

    def _send_exit(self, session_exit: Exit) -> None:
        if session_exit.signal is not None:
            self.chan.exit_with_signal(*session_exit.signal)
        else:
            self.chan.exit(ERROR_STATUS if session_exit.status is None else session_exit.status)

    async def _work(self) -> None:
        try:
            with self.observer.work(Work.SSH_CHANNEL, self.kind):
                end = await self.run()
            self.finish(end)
        except BoxdError as error:
            self.write_stderr_line(str(error))
            self.finish(Exit(ERROR_STATUS))
        except Exception:
            number = secrets.token_hex(4)
            _log.exception("internal error %s", number)
            self.write_stderr_line(f"internal error ({number})")
            self.finish(Exit(ERROR_STATUS))
