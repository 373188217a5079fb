"""`whoami`: who the service takes the caller for."""

from __future__ import annotations

from boxd.ssh.cli.command import Call, Command, Reply
from boxd.ssh.cli.table import listing

_NOTES = (
    "This fingerprint is your account: whoever holds the private key is you, and without it the",
    "account cannot be recovered. If your client holds several keys, name one: ssh -i KEY -o"
    " IdentitiesOnly=yes",
)


async def _run(call: Call) -> Reply:
    who = await call.operations.stats.whoami(call.principal)
    pairs = [
        ("fingerprint", who.fingerprint),
        ("tier", who.tier),
        ("boxes", who.boxes),
        ("workspaces", ", ".join(who.workspaces)),
        ("api keys", who.api_keys),
    ]
    return Reply(who.to_json(), listing(pairs), _NOTES)


COMMANDS = (Command(("whoami",), "show the identity you connected with", "whoami", _run),)
