"""The command line of `box`: its parser, and what happens to errors."""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import TYPE_CHECKING

from boxd_client.cli import account, boxes, completion, copying, port, running, shell
from boxd_client.cli.context import FAILURE, Context
from boxd_client.cli.output import coloured, printable
from boxd_client.errors import BoxError, ServiceError
from boxd_client.protocol import VERSION

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Act = Callable[[Context], int]
    Actions = argparse._SubParsersAction[argparse.ArgumentParser]

INTERRUPTED = 130
BOX = "box by its name, or WORKSPACE/NAME"
DURATION = "duration such as 90s, 30m, 2h or 1d"


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    top = argparse.ArgumentParser(prog="box", description="Work with boxes of a Box Service.")
    top.add_argument("--version", action="version", version=f"box {VERSION}")
    actions = top.add_subparsers(metavar="COMMAND", required=True)
    _box_commands(actions)
    _run_commands(actions)
    _file_commands(actions)
    _account_commands(actions)
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status."""
    top = parser()
    args = top.parse_args(arguments)
    if args.act is None:
        return completion.complete(top, args.words)
    context = Context(args)
    try:
        status = int(args.act(context))
        sys.stdout.flush()
        return status
    except BoxError as error:
        _report(error, as_json=args.json)
        return FAILURE
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of the output has closed the pipe, as in `box ls | head`.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILURE


def _report(error: BoxError, *, as_json: bool) -> None:
    if as_json:
        status = error.status if isinstance(error, ServiceError) else None
        text = json.dumps({"error": str(error), "type": type(error).__name__, "status": status})
    else:
        text = coloured("box:", "error", sys.stderr) + f" {printable(str(error))}"
    sys.stderr.write(text + "\n")


def _add(actions: Actions, name: str, act: Act, about: str) -> argparse.ArgumentParser:
    command = actions.add_parser(name, help=about, description=about[0].upper() + about[1:] + ".")
    command.add_argument("--json", action="store_true", help="print JSON")
    command.set_defaults(act=act)
    return command


def _box_commands(actions: Actions) -> None:
    new = _add(actions, "new", boxes.new, "create a box, or wake the one of this name")
    new.add_argument("name", metavar="NAME", help="name, WORKSPACE/NAME, or a whole spec")
    new.add_argument("--image", help="image or profile (default: that of the service)")
    new.add_argument("--flavor", help="resource limits (default: that of the service)")
    new.add_argument("--deadline", help=f"remove the box after this {DURATION}")
    new.add_argument("--lifetime", help=f"stay awake this long after the last use; {DURATION}")
    new.add_argument("--durable", action="store_true", help="remove the box only at its deadline")
    new.add_argument("--fresh", action="store_true", help="replace an existing box")

    ls = _add(actions, "ls", boxes.ls, "list boxes")
    ls.add_argument("-w", "--workspace", help="only boxes of this workspace")

    rm = _add(actions, "rm", boxes.rm, "remove boxes with everything in them")
    rm.add_argument("boxes", nargs="+", metavar="NAME", help=BOX)
    rm.add_argument("-f", "--force", action="store_true", help="also pinned boxes")
    suspend = _add(actions, "suspend", boxes.suspend, "save the memory of boxes and stop them")
    suspend.add_argument("boxes", nargs="+", metavar="NAME", help=BOX)
    resume = _add(actions, "resume", boxes.resume, "wake boxes")
    resume.add_argument("boxes", nargs="+", metavar="NAME", help=BOX)

    fork = _add(actions, "fork", boxes.fork, "copy a running box with its memory")
    fork.add_argument("box", metavar="NAME", help=BOX)
    fork.add_argument("copy", metavar="COPY", help="name of the copy")


def _run_commands(actions: Actions) -> None:
    sh = _add(actions, "sh", shell.sh, "open a shell; create the box if it does not exist")
    sh.add_argument("box", metavar="NAME", help=BOX)

    run = _add(actions, "run", running.run, "run a command and return its exit status")
    run.add_argument("-d", "--detach", action="store_true", help="print an id and do not wait")
    run.add_argument("-n", "--no-stdin", action="store_true", help="do not read standard input")
    run.add_argument("-e", "--env", action="append", default=[], metavar="NAME=VALUE")
    run.add_argument("--timeout", type=int, metavar="SECONDS", help="end the command after this")
    run.add_argument("box", metavar="NAME", help=BOX)
    run.add_argument(
        "command",
        nargs=argparse.REMAINDER,
        metavar="COMMAND",
        help="one word goes to the shell as it is; several words are quoted",
    )

    logs = _add(actions, "logs", running.logs, "show the output of a background command")
    logs.add_argument("-f", "--follow", action="store_true", help="wait for more until it ends")
    logs.add_argument("box", metavar="NAME", help=BOX)
    logs.add_argument("id", nargs="?", metavar="ID", help="default: the newest command")
    ps = _add(actions, "ps", running.ps, "list the background commands of a box")
    ps.add_argument("box", metavar="NAME", help=BOX)
    kill = _add(actions, "kill", running.kill, "send a signal to a background command")
    kill.add_argument("-s", "--signal", default="TERM", help="name of the signal (default: TERM)")
    kill.add_argument("box", metavar="NAME", help=BOX)
    kill.add_argument("id", metavar="ID", help="id of the command")


def _file_commands(actions: Actions) -> None:
    cp = _add(actions, "cp", copying.cp, "copy a file or directory into a box or out of it")
    cp.add_argument("source", metavar="SOURCE", help="path, or NAME:PATH in a box")
    cp.add_argument("target", metavar="TARGET", help="path, or NAME:PATH in a box")

    forward = _add(actions, "port", port.port, "forward a local port to a port of a box, for HTTP")
    forward.add_argument("box", metavar="NAME", help=BOX)
    forward.add_argument("port", type=_port, metavar="PORT", help="port in the box")
    forward.add_argument(
        "--local-port", type=_local_port, help="port here; 0: any free one (default: PORT)"
    )


def _account_commands(actions: Actions) -> None:
    login = _add(actions, "login", account.login, "store the URL and the API key, read from stdin")
    login.add_argument("url", metavar="URL", help="URL of the service")
    _add(actions, "config", account.config, "show which service and key the command uses")
    script = _add(actions, "completion", completion.completion, "print a script for a shell")
    script.add_argument("shell", choices=sorted(completion.SCRIPTS))
    hidden = actions.add_parser("__complete")
    hidden.add_argument("marker")  # after it, words that begin with a dash are no options
    hidden.add_argument("words", nargs=argparse.REMAINDER)
    hidden.set_defaults(act=None)


def _port(text: str) -> int:
    number = _local_port(text)
    if number == 0:
        raise argparse.ArgumentTypeError("not a port")
    return number


def _local_port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 5 and int(text) < 65536):
        raise argparse.ArgumentTypeError("not a port")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
