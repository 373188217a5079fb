"""`whoami`: the identity of the caller."""

from __future__ import annotations

from boxd.ssh.cli.command import Call, Command, Reply
from boxd.ssh.cli.table import key_value_lines

_NOTES = (
    "The fingerprint of your first key names your account. If you lose all its keys, you lose the "
    "account: add a second key (keys add), and create recovery codes (recovery create).",
    "With several keys, choose the one to use: ssh -i KEY -o IdentitiesOnly=yes",
)


async def _run(call: Call) -> Reply:
    identity = await call.operations.stats.whoami(call.principal)
    pairs = [
        ("fingerprint", identity.fingerprint),
        ("key", identity.key),
        ("name", identity.name),
        ("tier", identity.tier),
        ("boxes", identity.boxes),
        ("workspaces", ", ".join(identity.workspaces)),
        ("api keys", identity.api_keys),
    ]
    return Reply(identity.to_json(), key_value_lines(pairs), _NOTES)


COMMANDS = (Command(("whoami",), "show the identity you connected with", "whoami", _run),)
