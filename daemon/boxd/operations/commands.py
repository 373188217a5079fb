"""Background commands: commands that belong to a box, not to the connection that starts them."""

from __future__ import annotations

from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from boxd.boxes.commands.background import checked_id, checked_signal
from boxd.boxes.state.requests import BoxAccess
from boxd.errors import BoxdError, Conflict
from boxd.model.background_command import BackgroundCommand
from boxd.tunnel.commands import UNLIMITED, BoxCommands

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator

    from boxd.boxes.commands.background import BackgroundRequest
    from boxd.boxes.lifecycle.holds import Attachment
    from boxd.operations.boxes import BoxOperations
    from boxd.principal import Principal
    from boxd.tunnel.commands import OutputPiece, OutputReader

WHY = "output"
"""The reason of the attachment of a request about a background command."""


@dataclass(frozen=True, slots=True)
class CommandRef:
    """A background command in the text of a caller: a box reference, its workspace, and an id."""

    box: str
    id: str
    ws: str | None = None


class CommandOutput:
    """The output of a background command, while the context of `CommandOperations.output` lasts."""

    def __init__(self, reader: OutputReader, box_id: str) -> None:
        self._reader = reader
        self._box_id = box_id

    @property
    def command(self) -> BackgroundCommand:
        """The command: its last state after all pieces, its first state before."""
        return BackgroundCommand(self._box_id, self._reader.end or self._reader.state)

    def pieces(self) -> AsyncGenerator[OutputPiece, None]:
        """Return the pieces of output in order. Raises Unavailable if the box is lost."""
        return self._reader.pieces()


class CommandOperations:
    """Starts, reads and ends background commands. Holds no state.

    A request attaches to the box like an exec, and resumes it if necessary. It needs the same
    rights. Each method raises what `BoxOperations.attach` raises, NotFound for an unknown command,
    Conflict if its state does not allow the request, and Unavailable if the box cannot be reached.
    """

    def __init__(self, boxes: BoxOperations) -> None:
        self._boxes = boxes

    async def start_command(
        self,
        p: Principal,
        access: BoxAccess,
        request: BackgroundRequest,
        stdin: AsyncIterable[bytes] | None = None,
    ) -> BackgroundCommand:
        """Start a command and return it.

        With `stdin`, return after the command has accepted all of this input, which is then
        closed; if that fails, the command is removed. Raises QuotaExceeded if the box runs too many
        background commands.
        """
        async with self._boxes.attach(p, access) as attachment:
            commands = BoxCommands(attachment.tunnel)
            state = await commands.start(
                request.cmd,
                {**attachment.env, **request.env},
                timeout_s=request.timeout_s,
                keep_awake=request.keep_awake,
                stdin=request.stdin,
            )
            if stdin is not None:
                try:
                    state = await commands.write(state.id, stdin, close=True)
                except Conflict:
                    state = await commands.show(state.id)  # it ended before it read all input
                except BaseException:
                    with suppress(BoxdError):
                        await commands.remove(state.id)
                    raise
            return BackgroundCommand(attachment.box.id, state)

    async def list_commands(
        self, p: Principal, box: str, ws: str | None = None
    ) -> list[BackgroundCommand]:
        """Return the commands of a box in the order of their start, ended ones too."""
        async with self._attached(p, box, ws) as attachment:
            states = await BoxCommands(attachment.tunnel).all()
            return [BackgroundCommand(attachment.box.id, state) for state in states]

    async def show_command(self, p: Principal, ref: CommandRef) -> BackgroundCommand:
        """Return one command."""
        number = checked_id(ref.id)
        async with self._attached(p, ref.box, ref.ws) as attachment:
            state = await BoxCommands(attachment.tunnel).show(number)
            return BackgroundCommand(attachment.box.id, state)

    @asynccontextmanager
    async def command_output(
        self,
        p: Principal,
        ref: CommandRef,
        offset: int,
        *,
        follow: bool,
        limit: int = UNLIMITED,
    ) -> AsyncIterator[CommandOutput]:
        """Read at most `limit` bytes from an offset; with `follow`, until the command has ended.

        The output ends early when the credential of the caller does; the command continues. Raises
        BadRequest for an offset after the end of the output.
        """
        number = checked_id(ref.id)
        async with (
            self._attached(p, ref.box, ref.ws) as attachment,
            BoxCommands(attachment.tunnel).output(
                number, offset, follow=follow, limit=limit
            ) as reader,
        ):
            yield CommandOutput(reader, attachment.box.id)

    async def write_command(
        self, p: Principal, ref: CommandRef, data: AsyncIterable[bytes], *, close: bool
    ) -> BackgroundCommand:
        """Write to the input of a command; with `close`, close the input afterwards."""
        number = checked_id(ref.id)
        async with self._attached(p, ref.box, ref.ws) as attachment:
            state = await BoxCommands(attachment.tunnel).write(number, data, close=close)
            return BackgroundCommand(attachment.box.id, state)

    async def signal_command(
        self, p: Principal, ref: CommandRef, name: object
    ) -> BackgroundCommand:
        """Send a signal to the process group of a command. Raises BadRequest."""
        number, name = checked_id(ref.id), checked_signal(name)
        async with self._attached(p, ref.box, ref.ws) as attachment:
            state = await BoxCommands(attachment.tunnel).signal(number, name)
            return BackgroundCommand(attachment.box.id, state)

    async def remove_command(self, p: Principal, ref: CommandRef) -> BackgroundCommand:
        """End a command (TERM, then KILL), forget it, and return its last state."""
        number = checked_id(ref.id)
        async with self._attached(p, ref.box, ref.ws) as attachment:
            state = await BoxCommands(attachment.tunnel).remove(number)
            return BackgroundCommand(attachment.box.id, state)

    @asynccontextmanager
    async def _attached(self, p: Principal, box: str, ws: str | None) -> AsyncIterator[Attachment]:
        access = BoxAccess(box, kind="reference", why=WHY, ws=ws, secrets=False)
        async with self._boxes.attach(p, access) as attachment:
            yield attachment
