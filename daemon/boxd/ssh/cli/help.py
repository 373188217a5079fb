"""`help`: the commands of the console, and the user names of the SSH server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from boxd.ssh.cli.command import Call, Command, Reply, UsageError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

_USERS = (
    ("web", "a shell in the box 'web'"),
    ("web:debian:small^2h", "with an image and a size; removed after two hours"),
    ("_", "a throwaway box"),
    ("images", "the images that boxes can start from"),
)
_SPECS = (
    ("ws/name", "the box 'name' in the workspace 'ws', which has its own drive"),
    ("name+", "a new box; an existing one of that name is removed first"),
    ("name!", "a durable box: it is not removed when it is unused (see keep)"),
    ("name^2h", "a new box that is removed after that time (^ttl)"),
    (
        "name+10m",
        "it sleeps 10 minutes after the last user left (+grace); removed if it cannot sleep",
    ),
    ("session-ID", "an existing box, by its name or the start of its ID"),
)


def command_argument(parser: argparse.ArgumentParser) -> None:
    """Add the argument for the command to explain."""
    parser.add_argument("command", nargs="*")


async def _run(call: Call) -> Reply:
    commands, document = select_commands(call)
    if call.args.command:
        return Reply(document, "\n".join(command_page(call, command) for command in commands))
    return Reply(document, _overview(call, commands))


def select_commands(call: Call) -> tuple[list[Command], list[dict[str, str]]]:
    """Return the console's commands that start with the typed words, and their JSON form.

    Raises UsageError if there are none.
    """
    typed = tuple(call.args.command)
    commands = [
        command for command in call.console.commands if command.words[: len(typed)] == typed
    ]
    if not commands:
        raise UsageError(call.console.unknown_command(" ".join(typed)))
    document = [
        {
            "command": command.name,
            "usage": command.synopsis,
            "about": command.about,
            "example": command.example,
        }
        for command in commands
    ]
    return commands, document


def command_page(call: Call, command: Command) -> str:
    """Return the help text of one command."""
    example = call.endpoint.ssh_command(call.console.user, command.example)
    return f"{command.synopsis}\n    {command.about}\n    {example}\n"


def _overview(call: Call, commands: list[Command]) -> str:
    endpoint = call.endpoint
    summaries = aligned([(command.name, command.about) for command in commands])
    return (
        f"Connect to a name to create a box:\n"
        f"{aligned([(endpoint.ssh_command(user), about) for user, about in _USERS])}"
        f"You can add to a name:\n{aligned(_SPECS)}"
        "scp, rsync and sftp do not accept ':' in a user name. Give them\n"
        "  -o User='web:debian' and only the host. /wrk is your drive; all your boxes share it.\n"
        "Forwarding with -L, -D, -W and -A works; reverse forwarding (-R) is not supported.\n"
        f"\nCommands, for example: {endpoint.ssh_command('cli', 'ls')}\n{summaries}"
        "Every command takes --json. help COMMAND shows its syntax.\n"
        "\nYour first key is your account; with several keys use -o IdentitiesOnly=yes.\n"
        f"Host key: {endpoint.fingerprint}; in scripts use -o StrictHostKeyChecking=accept-new.\n"
    )


def aligned(rows: Sequence[tuple[str, str]]) -> str:
    """Return indented lines with two aligned columns."""
    width = max(len(left) for left, _ in rows)
    return "".join(f"  {left.ljust(width)}  {right}\n" for left, right in rows)


COMMANDS = (Command(("help",), "show this, or one command", "help rm", _run, command_argument),)
