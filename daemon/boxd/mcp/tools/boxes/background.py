"""`command_*`: background commands of a box, which outlive the call that starts them."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from box_guest.shared.command_messages import MAX_OFFSET, MAX_TIMEOUT_S
from boxd.boxes.commands.background import BackgroundRequest
from boxd.boxes.state.requests import BoxAccess
from boxd.errors import QuotaExceeded
from boxd.mcp.tools.boxes.boxes import REF
from boxd.mcp.tools.boxes.commands import encode_streams
from boxd.mcp.tools.params import Param
from boxd.mcp.tools.shapes import BOOLEAN, ENCODING, INTEGER, STRING, decode, list_of
from boxd.mcp.tools.tool import Call, Tool
from boxd.model.delegated import MAX_OUTPUT, OUTPUT
from boxd.operations.commands import WHY, CommandRef

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from boxd.boxes.limits.budgets.output import Part
    from boxd.operations.commands import CommandOutput

MAX_WAIT_S = 60
"""Maximum time in seconds that a call waits for output."""

_NULLABLE_INTEGER = {"type": ["integer", "null"]}
_NULLABLE_STRING = {"type": ["string", "null"]}
COMMAND: dict[str, Any] = {
    "id": STRING,
    "box": STRING,
    "cmd": STRING,
    "state": STRING,
    "exit_code": _NULLABLE_INTEGER,
    "signal": _NULLABLE_STRING,
    "pid": INTEGER,
    "started": STRING,
    "ended": _NULLABLE_STRING,
    "output_bytes": INTEGER,
    "dropped_bytes": INTEGER,
    "stdin_open": BOOLEAN,
    "keep_awake": BOOLEAN,
    "timeout_s": _NULLABLE_INTEGER,
}
_ID = Param("id", "string", "the id of the command, from command_start or command_list", True)


async def _start(call: Call) -> dict[str, Any]:
    request = BackgroundRequest.checked(
        call.args["cmd"],
        call.args["env"],
        call.args["timeout_s"],
        stdin=call.args["stdin"],
        keep_awake=call.args["keep_awake"],
    )
    access = BoxAccess(call.args["box"], kind="reference", why=WHY)
    command = await call.operations.commands.start_command(call.principal, access, request)
    return command.to_json()


async def _list(call: Call) -> dict[str, Any]:
    commands = await call.operations.commands.list_commands(call.principal, call.args["box"])
    return {"commands": [command.to_json() for command in commands]}


async def _output(call: Call) -> dict[str, Any]:
    offset, limit = call.args["offset"], call.args["max_output"]
    with call.operations.output.room(call.principal.owner) as room:
        portion = _Portion(offset, {"stdout": room.part(), "stderr": room.part()})
        opening = call.operations.commands.command_output(
            call.principal, _ref(call), offset, follow=call.args["wait_s"] > 0, limit=limit
        )
        async with opening as output:
            await portion.read(output, limit, call.args["wait_s"])
            command = output.command
        await call.reserve(sum(len(stream) for stream in portion.streams.values()))
        shown = command.to_json()
        return {
            **encode_streams(bytes(portion.streams["stdout"]), bytes(portion.streams["stderr"])),
            "next_offset": portion.next_offset,
            "dropped_bytes": portion.dropped,
            "state": shown["state"],
            "exit_code": shown["exit_code"],
            "output_bytes": max(portion.next_offset, command.state.output_bytes),
        }


class _Portion:
    """The output that one call returns."""

    def __init__(self, offset: int, parts: dict[str, Part]) -> None:
        self.next_offset = offset
        self.dropped = 0
        self.streams = {name: bytearray() for name in parts}
        self._parts = parts

    async def read(self, output: CommandOutput, limit: int, wait_s: int) -> None:
        """Read until there is output, the command has ended or the time is over."""
        try:
            async with asyncio.timeout(wait_s or None), aclosing(output.pieces()) as pieces:
                async for piece in pieces:
                    if piece.stream is None:
                        self.dropped += piece.dropped
                    elif self._parts[piece.stream].grow(len(piece.data)) < len(piece.data):
                        self._check_progress()
                        return
                    else:
                        self.streams[piece.stream] += piece.data
                    self.next_offset = piece.next_offset
                    limit -= len(piece.data)
                    if wait_s and (limit == 0 or self.next_offset >= self._stored(output)):
                        return
        except TimeoutError:
            return

    def _stored(self, output: CommandOutput) -> int:
        """Return the offset up to which output was stored when the call began."""
        return output.command.state.output_bytes

    def _check_progress(self) -> None:
        if not any(self.streams.values()):
            raise QuotaExceeded(
                "the output cannot be buffered: the unread output of all your commands exceeds the"
                " limit; wait for your other calls"
            )


async def _write(call: Call) -> dict[str, Any]:
    data = decode(call.args["data"], call.args["encoding"])
    command = await call.operations.commands.write_command(
        call.principal, _ref(call), _pieces(data), close=call.args["close"]
    )
    return command.to_json()


async def _end(call: Call) -> dict[str, Any]:
    commands = call.operations.commands
    if call.args["signal"] is None:
        command = await commands.remove_command(call.principal, _ref(call))
    else:
        command = await commands.signal_command(call.principal, _ref(call), call.args["signal"])
    return command.to_json()


async def _pieces(data: bytes) -> AsyncGenerator[bytes, None]:
    if data:
        yield data


def _ref(call: Call) -> CommandRef:
    return CommandRef(call.args["box"], call.args["id"])


TOOLS = (
    Tool(
        "command_start",
        "Start a background command",
        "Start a shell command that continues after this call, such as a server or a long build. "
        "It belongs to the box: a suspension or a restart of the service does not end it. Read its "
        "output with command_output.",
        _start,
        (
            REF,
            Param("cmd", "string", "the command; the login shell of the box runs it", True),
            Param("env", "environment", "environment variables of the command"),
            Param(
                "timeout_s",
                "integer",
                "end the command after this many seconds (default: never)",
                minimum=1,
                maximum=MAX_TIMEOUT_S,
            ),
            Param("stdin", "boolean", "keep its input open for command_write", default=False),
            Param(
                "keep_awake",
                "boolean",
                "do not suspend the box automatically while the command runs",
                default=True,
            ),
        ),
        COMMAND,
        open_world=True,
    ),
    Tool(
        "command_list",
        "List background commands",
        "List the background commands of a box in the order of their start, ended ones too.",
        _list,
        (REF,),
        {"commands": list_of(COMMAND)},
        read_only=True,
    ),
    Tool(
        "command_output",
        "Read the output of a background command",
        "Read stored output of a background command from an offset. With `wait_s`, wait for output "
        "if there is none yet, or for the end of the command. Pass `next_offset` of the result as "
        "`offset` to continue.",
        _output,
        (
            REF,
            _ID,
            Param(
                "offset",
                "integer",
                "the first byte, counted over both streams",
                default=0,
                minimum=0,
                maximum=MAX_OFFSET,
            ),
            Param(
                "wait_s",
                "integer",
                "seconds to wait for output",
                default=0,
                minimum=0,
                maximum=MAX_WAIT_S,
            ),
            Param(
                "max_output",
                "integer",
                "the maximum number of bytes to return, of both streams",
                default=OUTPUT,
                minimum=1,
                maximum=MAX_OUTPUT,
            ),
        ),
        {
            "stdout": STRING,
            "stderr": STRING,
            "encoding": ENCODING,
            "next_offset": INTEGER,
            "dropped_bytes": INTEGER,
            "state": STRING,
            "exit_code": _NULLABLE_INTEGER,
            "output_bytes": INTEGER,
        },
        read_only=True,
    ),
    Tool(
        "command_write",
        "Write to a background command",
        "Write to the standard input of a background command that was started with `stdin`.",
        _write,
        (
            REF,
            _ID,
            Param("data", "string", "the input", default=""),
            Param(
                "encoding",
                "string",
                "the encoding of data",
                default="utf-8",
                choices=("utf-8", "base64"),
            ),
            Param("close", "boolean", "close the input afterwards", default=False),
        ),
        COMMAND,
        open_world=True,
    ),
    Tool(
        "command_end",
        "End a background command",
        "End a background command with its processes and forget it and its output; return its last "
        "state. With `signal`, only send that signal.",
        _end,
        (REF, _ID, Param("signal", "string", "the signal to send, such as INT")),
        COMMAND,
        destructive=True,
        open_world=True,
    ),
)
