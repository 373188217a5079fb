"""`help`: the commands of the administrators' console."""

from __future__ import annotations

from boxd.ssh.cli.command import Call, Command, Reply
from boxd.ssh.cli.help import aligned, command_argument, command_page, select_commands

_REFERENCES = (
    ("0f3a41", "the box of any owner whose id starts with 0f3a41"),
    ("SHA256:...:web", "the box 'web' of this owner; also SHA256:...:ws/web"),
)


async def _run(call: Call) -> Reply:
    commands, document = select_commands(call)
    if call.args.command:
        return Reply(document, "\n".join(command_page(call, command) for command in commands))
    example = call.endpoint.ssh_command(call.console.user, "owners")
    summaries = aligned([(command.name, command.about) for command in commands])
    text = (
        f"Commands, for example: {example}\n{summaries}"
        f"You can name a box by:\n{aligned(_REFERENCES)}"
        "Every command takes --json. The audit records a command before it runs.\n"
    )
    return Reply(document, text)


COMMANDS = (
    Command(("help",), "show this, or one command", "help tier set", _run, command_argument),
)
