"""`box-guest`: the agent's command line inside the box.

Uses the standard library only and no asyncio, so that it starts quickly.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import socket
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from box_guest import protocol, trash
from box_guest.errors import AgentDown, GuestError, RequestFailed
from box_guest.shared.command_line import CommandParser
from box_guest.shared.unread import quietly

if TYPE_CHECKING:
    from collections.abc import Callable

TIMEOUT_S = 90.0
"""Seconds to wait for the agent. The agent waits less for the daemon, so its error text arrives."""
ASK_PAUSE_S = 2.0
"""Seconds between two checks for the answer to a question."""
ASK_FAILURES = 60
"""Consecutive checks that may fail before the command gives up."""
SOCKET_VARIABLE = "BOX_GUEST_SOCKET"
"""Environment variable that overrides the path of the guest socket."""
_SIZES = (86_400, 3_600, 60, 1)
_DURATION = re.compile(r"(?:(\d{1,6})d)?(?:(\d{1,6})h)?(?:(\d{1,6})m)?(?:(\d{1,6})s)?", re.ASCII)


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit status.

    0: success; 1: the request was rejected or failed (text on stderr), or `trash restore` left
    entries in the trash; 2: wrong usage; 141: the reader of the output has exited.
    """
    return quietly(lambda: _main(arguments))


def _main(arguments: list[str] | None) -> int:
    options = _parser().parse_args(arguments)
    path = options.socket or os.environ.get(SOCKET_VARIABLE) or str(protocol.GUEST_SOCKET)
    name_process()
    path = os.path.abspath(path)
    os.chdir("/")  # a working directory on the drive would keep the drive busy

    def send(fields: dict[str, Any]) -> dict[str, Any]:
        return ask(Path(path), {"type": options.request, "id": 1, **fields})

    try:
        result = options.run(options, send)
        if options.request == protocol.ASK:
            result = wait_for_answer(Path(path), str(result.get("ask")))
    except GuestError as error:
        print(f"box-guest: {error}", file=sys.stderr)
        return 1
    if options.json:
        print(json.dumps(result))
    else:
        for line in options.lines(result):
            print(line)
    return 1 if result.get("missing_count") else 0


def _run(
    options: argparse.Namespace, send: Callable[[dict[str, Any]], dict[str, Any]]
) -> dict[str, Any]:
    """Send the one request of a command."""
    return send(options.fields(options))


def _lines(result: dict[str, Any]) -> list[str]:
    """Format an answer for people, one line for each member."""
    return [f"{key}: {_formatted(key, value)}" for key, value in result.items()]


def _formatted(key: str, value: object) -> str:
    """Format a value of an answer for people."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, int) and (key.startswith("bytes_") or key.endswith("_bytes")):
        size = float(value)
        for unit in ("B", "KiB", "MiB", "GiB"):
            if size < 1024:
                return f"{size:.1f} {unit}" if unit != "B" else f"{value} B"
            size /= 1024
        return f"{size:.1f} TiB"
    return str(value)


def name_process() -> None:
    """Set this process's name to `box-guest`; otherwise `ps` shows the loader that started it."""
    with contextlib.suppress(OSError):  # without /proc there is no process list
        Path("/proc/self/comm").write_text(protocol.PROCESS_NAME)


def ask(path: Path, request: dict[str, Any]) -> dict[str, Any]:
    """Send one request to the agent and return its result.

    Raises AgentDown if the agent does not answer, RequestFailed if it rejects the request.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as agent:
        agent.settimeout(TIMEOUT_S)
        try:
            agent.connect(str(path))
            agent.sendall(protocol.encode(request))
            with agent.makefile("rb") as stream:
                line = stream.readline(protocol.MAX_LINE + 1)
        except OSError as error:
            late = isinstance(error, TimeoutError)
            text = f"no answer within {TIMEOUT_S:.0f} s" if late else error.strerror
            raise AgentDown(f"cannot reach the box's agent at {path}: {text}") from None
    try:
        answer = protocol.decode(line)
    except protocol.ProtocolError:
        raise AgentDown(
            f"the box's agent at {path} closed the connection without an answer"
        ) from None
    if answer.get("ok") is not True:
        raise RequestFailed(str(answer.get("error", "refused")))
    result = answer.get("result")
    return result if isinstance(result, dict) else {}


def wait_for_answer(path: Path, number: str) -> dict[str, Any]:
    """Wait for the answer to question `number` and return it as `{"answer": text}`.

    Polls, because the tunnel may go down meanwhile: the daemon restarts, or the box is suspended.
    Raises RequestFailed if the question expires without an answer, and the last error after
    ASK_FAILURES failed checks in a row.
    """
    request = {"type": protocol.ASK_STATE, "id": 1, "ask": number}
    failures = 0
    while True:
        time.sleep(ASK_PAUSE_S)
        try:
            question = ask(path, request)
        except GuestError:
            failures += 1
            if failures == ASK_FAILURES:
                raise
            continue
        failures = 0
        if question.get("state") == "answered":
            return {"answer": question.get("answer")}
        if question.get("state") != "open":
            raise RequestFailed("the question expired without an answer; ask again")


def _duration(text: str) -> int:
    """Parse a duration such as `90s`, `1h30m` or `2d` into seconds."""
    match = _DURATION.fullmatch(text)
    if match is None or not text:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a duration; use for example 90s, 30m, 2h or 1h30m"
        )
    counts = (int(count or 0) for count in match.groups())
    return sum(count * size for count, size in zip(counts, _SIZES, strict=True))


def _parser() -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = CommandParser(
        prog="box-guest", description="Control this box from inside."
    )
    parser.set_defaults(run=_run, lines=_lines)
    parser.add_argument("--socket", help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true", help="print the result as one JSON document")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    # --json is also accepted after the command. If it is absent there, the value from before the
    # command applies.
    late = argparse.ArgumentParser(add_help=False, argument_default=argparse.SUPPRESS)
    late.add_argument("--json", action="store_true", help=argparse.SUPPRESS)
    info = commands.add_parser(
        "info", parents=[late], help="show this box, its tunnel and what keeps it awake"
    )
    info.set_defaults(request=protocol.INFO, fields=lambda _: {})
    pin = commands.add_parser(
        "pin", parents=[late], help="keep the box awake; a deadline (`^ttl`) still removes it"
    )
    pin.add_argument(
        "--for",
        dest="seconds",
        type=_duration,
        default=protocol.PIN_DEFAULT_S,
        metavar="TIME",
        help="for how long, up to 7d, such as 90s, 30m or 1h30m (default: 2h)",
    )
    pin.add_argument(
        "--why", default="", metavar="TEXT", help="reason, which lists show with the box"
    )
    pin.set_defaults(
        request=protocol.PIN, fields=lambda options: {"for_s": options.seconds, "why": options.why}
    )
    unpin = commands.add_parser("unpin", parents=[late], help="remove the pin")
    unpin.set_defaults(request=protocol.UNPIN, fields=lambda _: {})
    auto = commands.add_parser(
        "auto-suspend", parents=[late], help="turn suspension of the idle box on or off"
    )
    auto.add_argument("on", choices=("on", "off"), help="on: suspend the box when it is idle")
    auto.set_defaults(
        request=protocol.AUTO_SUSPEND, fields=lambda options: {"on": options.on == "on"}
    )
    _add_ask(commands, late)
    _add_workspace(commands, late)
    trash.add_parser(commands, late)
    return parser


def _add_ask(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], late: argparse.ArgumentParser
) -> None:
    """Add the command `ask`; `late` defines the options of every command."""
    question = commands.add_parser(
        "ask", parents=[late], help="ask the owner a question, wait, and print the answer"
    )
    question.add_argument("question", help="text of the question")
    question.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="TEXT",
        help="an answer to choose from; repeat for more",
    )
    question.set_defaults(
        request=protocol.ASK,
        fields=lambda options: {"question": options.question, "options": options.option},
        lines=lambda result: [str(result.get("answer"))],
    )


def _add_workspace(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], late: argparse.ArgumentParser
) -> None:
    """Add the command `workspace` with its verbs; `late` defines the options of every command."""
    workspace = commands.add_parser(
        "workspace", parents=[late], help=f"manage the drive at {protocol.DRIVE_DIR}"
    )
    workspace.set_defaults(
        request=protocol.WORKSPACE, fields=lambda options: {"verb": options.verb}
    )
    verbs = workspace.add_subparsers(dest="verb", required=True, metavar="VERB")
    verbs.add_parser("mount", parents=[late], help=f"mount the drive at {protocol.DRIVE_DIR}")
    verbs.add_parser(
        "info", parents=[late], help="show whether the drive is mounted, and its usage"
    )
    verbs.add_parser("umount", parents=[late], help="unmount the drive")


if __name__ == "__main__":
    sys.exit(main())
