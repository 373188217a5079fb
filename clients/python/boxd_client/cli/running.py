"""`box run|logs|ps|kill`: commands in boxes."""

from __future__ import annotations

import os
import shlex
import sys
import threading
from typing import TYPE_CHECKING

from boxd_client.cli.output import note, print_json, print_table
from boxd_client.errors import BoxError, InvalidRequest, NotFound
from boxd_client.models import Dropped, Exit, Output

if TYPE_CHECKING:
    from boxd_client._sync.box import Box
    from boxd_client._sync.commands import Command
    from boxd_client._sync.streams import CommandStream
    from boxd_client.cli.context import Context

READ_BYTES = 65536


def run(context: Context) -> int:
    """Run a command; the exit status is that of the command."""
    args = context.args
    env = _environment(args.env)
    words = args.command[1:] if args.command[:1] == ["--"] else args.command
    if not words:
        raise InvalidRequest("no command; for example: box run dev uname -a")
    cmd = words[0] if len(words) == 1 else shlex.join(words)
    if args.detach:
        command = _start(context, cmd, env)
        if context.json:
            print_json(command.info().raw)
        else:
            sys.stdout.write(command.id + "\n")
        return 0
    if args.no_stdin or sys.stdin is None or sys.stdin.isatty():
        limit = {} if args.timeout is None else {"timeout": args.timeout}
        with context.box().stream(cmd, env=env, **limit) as stream:
            return _show(context, stream)
    return _with_input(context, cmd, env)


def logs(context: Context) -> int:
    """Show the output of a background command."""
    box = context.box()
    command_id = context.args.id or _newest(box)
    command = box.command(command_id)
    if context.args.follow:
        with command.output() as stream:
            return _show(context, stream)
    return _show_stored(context, command)


def ps(context: Context) -> int:
    """List the background commands of a box."""
    commands = context.box().commands()
    if context.json:
        print_json([command.raw for command in commands])
        return 0
    rows = [
        (
            command.id,
            command.state,
            "-" if command.exit_code is None else command.exit_code,
            command.started.strftime("%Y-%m-%d %H:%M:%S") if command.started else "-",
            command.cmd,
        )
        for command in commands
    ]
    print_table(("ID", "STATE", "EXIT", "STARTED (UTC)", "COMMAND"), rows)
    return 0


def kill(context: Context) -> int:
    """Send a signal to a background command."""
    context.box().command(context.args.id).signal(context.args.signal)
    if context.json:
        print_json({"id": context.args.id, "signal": context.args.signal})
    return 0


def _show_stored(context: Context, command: Command) -> int:
    """Print the output that is stored now."""
    stdout, stderr = bytearray(), bytearray()
    offset = 0
    while True:
        part = command.read(offset)
        if part.dropped_bytes:
            note(f"box: {part.dropped_bytes} bytes of older output are no longer stored")
        if context.json:
            stdout += part.stdout
            stderr += part.stderr
        else:
            _write("stdout", part.stdout)
            _write("stderr", part.stderr)
        if part.next_offset <= offset:
            break
        offset = part.next_offset
    if context.json:
        texts = {"stdout": stdout.decode("utf-8", "replace")}
        texts["stderr"] = stderr.decode("utf-8", "replace")
        print_json({"state": part.state, "exit_code": part.exit_code, **texts})
    return 0


def _write(name: str, data: bytes) -> None:
    stream = (sys.stdout if name == "stdout" else sys.stderr).buffer
    stream.write(data)
    stream.flush()


def _environment(pairs: list[str]) -> dict[str, str]:
    for pair in pairs:
        if "=" not in pair:
            raise InvalidRequest(f"--env {pair!r} is not of the form NAME=VALUE")
    return {name: value for name, _, value in (pair.partition("=") for pair in pairs)}


def _newest(box: Box) -> str:
    commands = [command for command in box.commands() if command.started is not None]
    if not commands:
        raise NotFound(f"box {box.ref} has no background commands", 404)
    return max(commands, key=lambda command: (command.started, command.id)).id


def _start(context: Context, cmd: str, env: dict[str, str], *, stdin: bool = False) -> Command:
    """Start a background command; create the box if it does not exist."""
    box, timeout = context.box(), context.args.timeout
    try:
        return box.start(cmd, env=env, timeout=timeout, stdin=stdin)
    except NotFound:
        box = context.client.boxes.create(box.ref)
        return box.start(cmd, env=env, timeout=timeout, stdin=stdin)


def _with_input(context: Context, cmd: str, env: dict[str, str]) -> int:
    """Run a command with standard input. Two connections let input and output overlap."""
    command = _start(context, cmd, env, stdin=True)
    failures: list[BoxError] = []
    feed = threading.Thread(target=_feed, args=(command, failures), daemon=True)
    feed.start()
    try:
        with command.output() as stream:
            code = _show(context, stream)
    finally:
        command.remove()
    for failure in failures:
        note(f"box: the input was not sent completely: {failure}")
    return code


def _feed(command: Command, failures: list[BoxError]) -> None:
    """Send standard input to a command. A command that ends early does not need the rest."""
    try:
        command.write(iter(lambda: os.read(sys.stdin.fileno(), READ_BYTES), b""), close=True)
    except BoxError as error:
        try:
            if command.info().state == "running":
                failures.append(error)
        except BoxError:
            return  # the command has ended and is removed


def _show(context: Context, stream: CommandStream) -> int:
    """Copy the output of a command and return its exit code."""
    if context.json:
        result = stream.collect()
        print_json(
            {
                "exit_code": result.exit_code,
                "stdout": result.stdout,
                "stderr": result.stderr,
            }
        )
        return result.exit_code
    code = 0
    for event in stream:
        match event:
            case Output(stream=name, data=data):
                _write(name, data)
            case Dropped(count=count):
                note(f"box: {count} bytes of older output are no longer stored")
            case Exit(code=code):
                pass
    return code
