"""`whoami`: the identity of the caller."""

from __future__ import annotations

from boxd.ssh.cli.command import Call, Command, Reply
from boxd.ssh.cli.table import key_value_lines

_NOTES = (
    "This fingerprint is your account. Your private key opens it; a lost key cannot be replaced.",
    "With several keys, choose the one to use: ssh -i KEY -o IdentitiesOnly=yes",
)


async def _run(call: Call) -> Reply:
    identity = await call.operations.stats.whoami(call.principal)
    pairs = [
        ("fingerprint", identity.fingerprint),
        ("tier", identity.tier),
        ("boxes", identity.boxes),
        ("workspaces", ", ".join(identity.workspaces)),
        ("api keys", identity.api_keys),
    ]
    return Reply(identity.to_json(), key_value_lines(pairs), _NOTES)


COMMANDS = (Command(("whoami",), "show the identity you connected with", "whoami", _run),)
