"""`commands`: commands that belong to a box and continue after the client disconnects."""

from __future__ import annotations

import base64
import json
import shlex
from contextlib import aclosing
from typing import TYPE_CHECKING

from boxd.boxes.commands.background import BackgroundRequest, checked_offset
from boxd.boxes.state.requests import BoxAccess
from boxd.errors import Unavailable
from boxd.names.duration import parse_duration
from boxd.operations.commands import WHY, CommandRef
from boxd.ssh.cli.command import Call, Command, ExitStatus, Reply, UsageError, workspace_option
from boxd.ssh.cli.table import format_size, table

if TYPE_CHECKING:
    import argparse
    from collections.abc import AsyncGenerator

    from boxd.model.background_command import BackgroundCommand
    from boxd.tunnel.commands import OutputPiece

_SHOWN = 60
"""Characters of a command in the table."""


def _start_arguments(parser: argparse.ArgumentParser) -> None:
    workspace_option(parser)
    parser.add_argument("--timeout", metavar="DURATION")
    parser.add_argument("--stdin", action="store_true")
    parser.add_argument("--no-keep-awake", action="store_true")
    parser.add_argument("ref")
    parser.add_argument("command", nargs="+")


def _ref_arguments(parser: argparse.ArgumentParser) -> None:
    workspace_option(parser)
    parser.add_argument("ref")


def _command_arguments(parser: argparse.ArgumentParser) -> None:
    _ref_arguments(parser)
    parser.add_argument("id")


def _output_arguments(parser: argparse.ArgumentParser) -> None:
    _command_arguments(parser)
    parser.add_argument("--follow", action="store_true")
    parser.add_argument("--offset", metavar="BYTES", default="0")


def _write_arguments(parser: argparse.ArgumentParser) -> None:
    _command_arguments(parser)
    parser.add_argument("--close", action="store_true")


def _signal_arguments(parser: argparse.ArgumentParser) -> None:
    _command_arguments(parser)
    parser.add_argument("signal", metavar="SIGNAL")


async def _start(call: Call) -> Reply:
    """Write only the id to stdout, so that a script can use it."""
    args = call.args
    # One word is a shell command. Several words are a program and its arguments.
    cmd = args.command[0] if len(args.command) == 1 else shlex.join(args.command)
    timeout = args.timeout and int(parse_duration(args.timeout, "timeout").total_seconds())
    request = BackgroundRequest.checked(
        cmd, None, timeout, stdin=args.stdin, keep_awake=not args.no_keep_awake
    )
    access = BoxAccess(args.ref, kind="reference", why=WHY, ws=args.ws)
    command = await call.operations.commands.start_command(call.principal, access, request)
    note = f"to read its output: commands output {args.ref} {command.id} --follow"
    return Reply(command.to_json(), f"{command.id}\n", [note])


async def _ls(call: Call) -> Reply:
    commands = await call.operations.commands.list_commands(
        call.principal, call.args.ref, call.args.ws
    )
    rows = [
        (
            command.id,
            _state(command),
            f"{command.to_json()['started'][:19]}Z",
            format_size(command.state.output_bytes),
            command.state.cmd[:_SHOWN],
        )
        for command in commands
    ]
    columns = ("ID", "STATE", "STARTED", "OUTPUT", "COMMAND")
    return Reply([command.to_json() for command in commands], table(columns, rows))


async def _output(call: Call) -> ExitStatus:
    """Write stdout of the command to stdout and its stderr to stderr, with its exit status."""
    offset = checked_offset(call.args.offset)
    opening = call.operations.commands.command_output(
        call.principal, _ref(call), offset, follow=call.args.follow
    )
    async with opening as output, aclosing(output.pieces()) as pieces:
        async for piece in pieces:
            await _show(call, piece)
        command = output.command
    if call.args.json:
        await _write_line(call, command.to_json())
    if call.args.json or not call.args.follow:
        return ExitStatus()
    if command.state.exit_code is None:
        raise Unavailable("the box ended the output of a command that still runs")
    return ExitStatus(command.state.exit_code)


async def _show(call: Call, piece: OutputPiece) -> None:
    if call.args.json:
        end = {"next_offset": piece.next_offset}
        if piece.stream is None:
            await _write_line(call, {"dropped_bytes": piece.dropped, **end})
        else:
            encoded = base64.b64encode(piece.data).decode("ascii")
            await _write_line(call, {piece.stream: encoded, **end})
        return
    data = piece.data.replace(b"\n", b"\r\n") if call.stdio.terminal else piece.data
    if piece.stream == "stdout":
        await call.stdio.write(data)
    elif piece.stream == "stderr":
        await call.stdio.write_error(data)
    else:
        text = f"boxd: {piece.dropped} bytes of output are no longer stored\n"
        await call.stdio.write_error(text.encode())


async def _write_line(call: Call, document: dict[str, object]) -> None:
    await call.stdio.write(json.dumps(document).encode() + b"\n")


async def _write(call: Call) -> Reply:
    if call.stdio.terminal:
        raise UsageError("the command reads standard input: use a pipe or a file, without ssh -t")
    command = await call.operations.commands.write_command(
        call.principal, _ref(call), _input(call), close=call.args.close
    )
    return Reply(command.to_json(), "")


async def _input(call: Call) -> AsyncGenerator[bytes, None]:
    while data := await call.stdio.read():
        yield data


async def _signal(call: Call) -> Reply:
    command = await call.operations.commands.signal_command(
        call.principal, _ref(call), call.args.signal
    )
    return Reply(command.to_json(), table(("ID", "STATE"), [(command.id, _state(command))]))


async def _rm(call: Call) -> Reply:
    command = await call.operations.commands.remove_command(call.principal, _ref(call))
    return Reply(command.to_json(), f"removed {command.id} ({_state(command)})\n")


def _ref(call: Call) -> CommandRef:
    return CommandRef(call.args.ref, call.args.id, call.args.ws)


def _state(command: BackgroundCommand) -> str:
    code = command.state.exit_code
    return "running" if code is None else f"exited {code}"


COMMANDS = (
    Command(
        ("commands", "start"),
        "start a command that continues after you disconnect; prints its id",
        "commands start web make test",
        _start,
        _start_arguments,
    ),
    Command(
        ("commands", "ls"),
        "list background commands of a box",
        "commands ls web",
        _ls,
        _ref_arguments,
    ),
    Command(
        ("commands", "output"),
        "show output of a background command; --follow waits for its end",
        "commands output web 00c0ffee00c0ffee --follow",
        _output,
        _output_arguments,
    ),
    Command(
        ("commands", "write"),
        "write standard input to a background command",
        "commands write web 00c0ffee00c0ffee --close",
        _write,
        _write_arguments,
    ),
    Command(
        ("commands", "signal"),
        "send a signal to a background command",
        "commands signal web 00c0ffee00c0ffee INT",
        _signal,
        _signal_arguments,
    ),
    Command(
        ("commands", "rm"),
        "end a background command and forget it",
        "commands rm web 00c0ffee00c0ffee",
        _rm,
        _command_arguments,
    ),
)
