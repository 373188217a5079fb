"""`help`: what administrators can type."""

from __future__ import annotations

from boxd.ssh.cli.command import Call, Command, Reply
from boxd.ssh.cli.help import aligned, asked_for, command_argument, page

_REFERENCES = (
    ("0f3a41", "the box of anybody whose id begins so"),
    ("SHA256:...:web", "the box that its owner calls 'web'; also SHA256:...:ws/web"),
)


async def _run(call: Call) -> Reply:
    commands, document = asked_for(call)
    if call.args.command:
        return Reply(document, "\n".join(page(call, command) for command in commands))
    listed = aligned([(command.name, command.about) for command in commands])
    text = (
        f"Commands, as in: {call.door.ssh(call.console.user, 'owners')}\n{listed}"
        f"Boxes are named by:\n{aligned(_REFERENCES)}"
        "Every command takes --json, and stands in the audit before it is run.\n"
    )
    return Reply(document, text)


COMMANDS = (
    Command(("help",), "show this, or one command", "help tier set", _run, command_argument),
)
