"""Protocol adapter only. Session channels that answer with text: the catalog, the CLI, refusals."""

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
    """From the remote command (None: no command), and its input and output."""


class TextSession(Session):
    """Runs one command of ours."""

    def __init__(
        self, tasks: BackgroundTasks, released: Callable[[], None], answer: Answer
    ) -> None:
        super().__init__(tasks, released)
        self._answer = answer
        self._stdio = ChannelStdio()
        self._command: str | None = None
        self._files = False

    def exec_requested(self, command: str) -> bool:
        """Takes the command."""
        self._command = command
        return True

    def subsystem_requested(self, subsystem: str) -> bool:
        """Granted, so that the refusal can be said in words."""
        self._files = True
        return super().subsystem_requested(subsystem)

    @guarded(None)
    def data_received(self, data: bytes, datatype: int | None) -> None:
        """Input."""
        self._stdio.came(data, self.chan)

    @guarded(True)
    def eof_received(self) -> bool:
        """Input has ended; output goes on."""
        self._stdio.ended()
        return True

    @guarded(None)
    def pause_writing(self) -> None:
        """The client does not read fast enough."""
        self._stdio.full()

    @guarded(None)
    def resume_writing(self) -> None:
        """The client reads again."""
        self._stdio.empty()
        super().resume_writing()

    async def run(self) -> Exit:
        """The answer, on stdout and stderr."""
        self._stdio.start(self.chan, terminal=self.pty)
        try:
            return await self._run()
        finally:
            self._stdio.end()
            if not self.gone:
                self.chan.resume_reading()

    async def _run(self) -> Exit:
        if self._files:
            raise Unsupported("this user has no files; transfer them with the name of a box")
        if self._command is not None and not is_text(self._command):
            raise BadRequest("the command is not UTF-8; type it in a terminal that is")
        result = await self._answer(self._command, self._stdio)
        self._write(result.stdout, None)
        self._write(result.stderr, 1)
        return Exit(status=result.status)

    def _write(self, text: str, datatype: int | None) -> None:
        if text and not self.chan.is_closing():
            shown = text.replace("\n", "\r\n") if self.pty else text
            self.chan.write(shown.encode("utf-8", "surrogateescape"), datatype)


class RefusalSession(Session):
    """Says why nothing can be done."""

    def __init__(
        self, tasks: BackgroundTasks, released: Callable[[], None], error: BoxdError
    ) -> None:
        super().__init__(tasks, released)
        self._error = error

    async def run(self) -> Exit:
        """Raises the refusal."""
        raise self._error
