"""Protocol adapter only. Session channels that the daemon answers itself, with text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from box_guest.shared.command_bytes import is_text
from boxd.errors import BadRequest, Unsupported
from boxd.ssh.connection.session import Exit, Session, guarded
from boxd.ssh.connection.stdio import ChannelStdio

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from boxd.errors import BoxdError
    from boxd.ssh.cli.command import Result, Stdio
    from boxd.tasks import BackgroundTasks

    Answer = Callable[[str | None, Stdio], Awaitable[Result]]
    """Runs a remote command (None: no command) with its input and output."""


class TextSession(Session):
    """Runs one command of a console."""

    kind = "console"

    def __init__(
        self, tasks: BackgroundTasks, on_closed: Callable[[], None], answer: Answer
    ) -> None:
        super().__init__(tasks, on_closed)
        self._answer = answer
        self._stdio = ChannelStdio()
        self._command: str | None = None
        self._is_file_transfer = False

    def exec_requested(self, command: str) -> bool:
        """Store the command."""
        self._command = command
        return True

    def subsystem_requested(self, subsystem: str) -> bool:
        """Grant file transfer, so that `run` can reject it with a text."""
        self._is_file_transfer = True
        return super().subsystem_requested(subsystem)

    @guarded(None)
    def data_received(self, data: bytes, datatype: int | None) -> None:
        """Pass input to the command."""
        self._stdio.feed_data(data, self.chan)

    @guarded(True)
    def eof_received(self) -> bool:
        """Pass the end of input to the command; the channel stays open for output."""
        self._stdio.feed_eof()
        return True

    @guarded(None)
    def pause_writing(self) -> None:
        """Stop output, because the client does not read fast enough."""
        self._stdio.pause_writing()

    @guarded(None)
    def resume_writing(self) -> None:
        """Continue output, because the client reads again."""
        self._stdio.resume_writing()
        super().resume_writing()

    async def run(self) -> Exit:
        """Run the command and write its result to stdout and stderr."""
        self._stdio.start(self.chan, terminal=self.pty)
        try:
            return await self._run()
        finally:
            self._stdio.end()
            if not self.closed:
                self.chan.resume_reading()

    async def _run(self) -> Exit:
        if self._is_file_transfer:
            raise Unsupported(
                "this user name has no files; use the name of a box to transfer files"
            )
        if self._command is not None and not is_text(self._command):
            raise BadRequest("the command is not UTF-8; use a terminal with a UTF-8 locale")
        result = await self._answer(self._command, self._stdio)
        self._write(result.stdout, None)
        self._write(result.stderr, 1)
        return Exit(status=result.status)

    def _write(self, text: str, datatype: int | None) -> None:
        if text and not self.chan.is_closing():
            output = text.replace("\n", "\r\n") if self.pty else text
            self.chan.write(output.encode("utf-8", "surrogateescape"), datatype)


class RefusalSession(Session):
    """Writes an error to stderr and ends with status 255."""

    kind = "refusal"

    def __init__(
        self, tasks: BackgroundTasks, on_closed: Callable[[], None], error: BoxdError
    ) -> None:
        super().__init__(tasks, on_closed)
        self._error = error

    async def run(self) -> Exit:
        """Raise the error."""
        raise self._error
