"""`box-guest`: the agent's command line inside the box.

Standard library only and no asyncio, so that it answers at once.
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
from typing import Any

from box_guest import protocol
from box_guest.errors import AgentDown, GuestError, RequestFailed

TIMEOUT_S = 90.0
"""Longer than the agent waits for the daemon, so that its error text arrives."""
ASK_PAUSE_S = 2.0
"""Between two looks whether a question has been answered."""
ASK_FAILURES = 60
"""Looks in a row that may fail."""
SOCKET_VARIABLE = "BOX_GUEST_SOCKET"
_SIZES = (86_400, 3_600, 60, 1)
_DURATION = re.compile(r"(?:(\d{1,6})d)?(?:(\d{1,6})h)?(?:(\d{1,6})m)?(?:(\d{1,6})s)?", re.ASCII)


def main(arguments: list[str] | None = None) -> int:
    """Runs one command. Exit status: 0 done, 1 refused or failed (text on stderr), 2 usage."""
    parsed = _parser().parse_args(arguments)
    path = parsed.socket or os.environ.get(SOCKET_VARIABLE) or str(protocol.GUEST_SOCKET)
    name_process()
    path = os.path.abspath(path)
    os.chdir("/")  # so that this very process does not keep the drive from being detached
    request: dict[str, Any] = {"type": parsed.request, "id": 1, **parsed.fields(parsed)}
    try:
        result = ask(Path(path), request)
        if parsed.request == protocol.ASK:
            result = wait_for_answer(Path(path), str(result.get("ask")))
    except GuestError as error:
        print(f"box-guest: {error}", file=sys.stderr)
        return 1
    if parsed.json:
        print(json.dumps(result))
    elif parsed.request == protocol.ASK:
        print(result.get("answer"))
    else:
        for key, value in result.items():
            print(f"{key}: {_shown(key, value)}")
    return 0


def _shown(key: str, value: object) -> str:
    """A value for people."""
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
    """Lists of processes show `box-guest`, not the loader that started the interpreter."""
    with contextlib.suppress(OSError):  # without /proc nobody lists processes
        Path("/proc/self/comm").write_text(protocol.PROCESS_NAME)


def ask(path: Path, request: dict[str, Any]) -> dict[str, Any]:
    """One request to the agent. Raises AgentDown or RequestFailed."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as agent:
        agent.settimeout(TIMEOUT_S)
        try:
            agent.connect(str(path))
            agent.sendall(protocol.encode(request))
            with agent.makefile("rb") as stream:
                line = stream.readline(protocol.MAX_LINE + 1)
        except OSError as error:
            text = "no answer in time" if isinstance(error, TimeoutError) else error.strerror
            raise AgentDown(f"the box's agent cannot be reached at {path}: {text}") from None
    try:
        answer = protocol.decode(line)
    except protocol.ProtocolError:
        raise AgentDown(f"the box's agent closed the connection at {path}") from None
    if answer.get("ok") is not True:
        raise RequestFailed(str(answer.get("error", "refused")))
    result = answer.get("result")
    return result if isinstance(result, dict) else {}


def wait_for_answer(path: Path, number: str) -> dict[str, Any]:
    """The answer to a question, when it comes. Raises RequestFailed when nobody gave one.

    The tunnel may go meanwhile, with the daemon or because the box sleeps.
    """
    request = {"type": protocol.ASK_STATE, "id": 1, "ask": number}
    failures = 0
    while True:
        time.sleep(ASK_PAUSE_S)
        try:
            told = ask(path, request)
        except GuestError:
            failures += 1
            if failures == ASK_FAILURES:
                raise
            continue
        failures = 0
        if told.get("state") == "answered":
            return {"answer": told.get("answer")}
        if told.get("state") != "open":
            raise RequestFailed("nobody has answered the question in its time")


def _duration(text: str) -> int:
    """Seconds. The text has the form that box specs have: `90s`, `1h30m`, `2d`."""
    match = _DURATION.fullmatch(text)
    if match is None or not text:
        raise argparse.ArgumentTypeError(f"{text!r} is no time: for example 90s, 30m, 2h or 1h30m")
    counts = (int(count or 0) for count in match.groups())
    return sum(count * size for count, size in zip(counts, _SIZES, strict=True))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="box-guest", description="Talks to the box's agent.")
    parser.add_argument("--socket", help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    # Also behind the command; what is not said there leaves what was said before it.
    late = argparse.ArgumentParser(add_help=False, argument_default=argparse.SUPPRESS)
    late.add_argument("--json", action="store_true", help=argparse.SUPPRESS)
    info = commands.add_parser(
        "info", parents=[late], help="this box: its tunnel, and what keeps it awake"
    )
    info.set_defaults(request=protocol.INFO, fields=lambda _: {})
    pin = commands.add_parser(
        "pin", parents=[late], help="keep the box awake; `^ttl` still ends it"
    )
    pin.add_argument(
        "--for",
        dest="seconds",
        type=_duration,
        default=protocol.PIN_DEFAULT_S,
        metavar="TIME",
        help="how long, up to 7d: 90s, 30m, 1h30m (2h)",
    )
    pin.add_argument("--why", default="", metavar="TEXT", help="shown beside the box in lists")
    pin.set_defaults(
        request=protocol.PIN, fields=lambda said: {"for_s": said.seconds, "why": said.why}
    )
    unpin = commands.add_parser("unpin", parents=[late], help="take the pin away")
    unpin.set_defaults(request=protocol.UNPIN, fields=lambda _: {})
    auto = commands.add_parser(
        "auto-suspend", parents=[late], help="whether the box sleeps when nobody uses it"
    )
    auto.add_argument("on", choices=("on", "off"))
    auto.set_defaults(request=protocol.AUTO_SUSPEND, fields=lambda said: {"on": said.on == "on"})
    question = commands.add_parser(
        "ask", parents=[late], help="ask the owner something, wait, print the answer"
    )
    question.add_argument("question")
    question.add_argument(
        "--option", action="append", default=[], metavar="TEXT", help="an answer to choose from"
    )
    question.set_defaults(
        request=protocol.ASK,
        fields=lambda said: {"question": said.question, "options": said.option},
    )
    workspace = commands.add_parser(
        "workspace", parents=[late], help=f"the drive at {protocol.DRIVE_DIR}"
    )
    workspace.set_defaults(request=protocol.WORKSPACE, fields=lambda said: {"verb": said.verb})
    verbs = workspace.add_subparsers(dest="verb", required=True, metavar="VERB")
    verbs.add_parser("mount", parents=[late], help=f"attach it at {protocol.DRIVE_DIR}")
    verbs.add_parser("info", parents=[late], help="whether it is attached, and its use")
    verbs.add_parser("umount", parents=[late], help="detach it")
    return parser


if __name__ == "__main__":
    sys.exit(main())
