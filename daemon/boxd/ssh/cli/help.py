"""`help`: what there is to type."""

from __future__ import annotations

from typing import TYPE_CHECKING

from boxd.ssh.cli.command import Call, Command, Reply, UsageError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

_USERS = (
    ("web", "a shell in the box 'web'"),
    ("web:debian:small^2h", "of an image and size, gone after two hours"),
    ("_", "a throwaway box"),
    ("images", "what boxes can start from"),
)
_SPECS = (
    ("ws/name", "the box 'name' of the workspace 'ws', which has a drive of its own"),
    ("name+", "a fresh box: an old one of that name is removed first"),
    ("name^2h", "a new box that is removed after that time (^ttl)"),
    (
        "name+10m",
        "time awake after the last user left (+grace); removed then if it cannot sleep",
    ),
    ("session-ID", "only a box that is there, by name or beginning of its ID"),
)


def command_argument(parser: argparse.ArgumentParser) -> None:
    """The command that is asked about."""
    parser.add_argument("command", nargs="*")


async def _run(call: Call) -> Reply:
    commands, document = asked_for(call)
    if call.args.command:
        return Reply(document, "\n".join(page(call, command) for command in commands))
    return Reply(document, _overview(call, commands))


def asked_for(call: Call) -> tuple[list[Command], list[dict[str, str]]]:
    """The commands of the call's console that begin with what was typed, and their JSON form."""
    asked = tuple(call.args.command)
    commands = [
        command for command in call.console.commands if command.words[: len(asked)] == asked
    ]
    if not commands:
        raise UsageError(call.console.no_command(" ".join(asked)))
    document = [
        {"command": c.name, "usage": c.synopsis, "about": c.about, "example": c.example}
        for c in commands
    ]
    return commands, document


def page(call: Call, command: Command) -> str:
    """All about one command."""
    example = call.door.ssh(call.console.user, command.example)
    return f"{command.synopsis}\n    {command.about}\n    {example}\n"


def _overview(call: Call, commands: list[Command]) -> str:
    door = call.door
    listed = aligned([(command.name, command.about) for command in commands])
    return (
        f"A box is made when you connect to its name:\n"
        f"{aligned([(door.ssh(user), about) for user, about in _USERS])}"
        f"What may be added to a name:\n{aligned(_SPECS)}"
        "Clients take ':' for more than a user's end; with scp, rsync and sftp write\n"
        "  -o User='web:debian' and a bare host. /wrk is your drive, the same in all your boxes.\n"
        "Forwarding with -L, -D, -W and -A works; reverse forwarding (-R) is not supported.\n"
        f"\nCommands, as in: {door.ssh('cli', 'ls')}\n{listed}"
        "Every command takes --json. help COMMAND shows how it is written.\n"
        "\nYour first key is your account; with several keys use -o IdentitiesOnly=yes.\n"
        f"Host key: {door.fingerprint}; in scripts use -o StrictHostKeyChecking=accept-new.\n"
    )


def aligned(rows: Sequence[tuple[str, str]]) -> str:
    """Two columns."""
    width = max(len(left) for left, _ in rows)
    return "".join(f"  {left.ljust(width)}  {right}\n" for left, right in rows)


COMMANDS = (Command(("help",), "show this, or one command", "help rm", _run, command_argument),)
