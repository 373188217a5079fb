"""`whoami`: who the service takes the caller for."""

from __future__ import annotations

from boxd.frontdoor.commands.command import Call, Command, Reply
from boxd.frontdoor.commands.table import listing

_NOTES = (
    "This fingerprint is your account: whoever holds the private key is you, and without it the",
    "account cannot be recovered. If your client holds several keys, name one: ssh -i KEY -o"
    " IdentitiesOnly=yes",
)


async def _run(call: Call) -> Reply:
    boxes = await call.operations.list_boxes(call.principal, everywhere=True)
    keys = await call.operations.list_keys(call.principal)
    workspaces = sorted({box.workspace for box in boxes if box.workspace is not None})
    document = {
        "fingerprint": call.principal.owner,
        "boxes": len(boxes),
        "workspaces_with_boxes": workspaces,
        "api_keys": len(keys),
    }
    pairs = [
        ("fingerprint", call.principal.owner),
        ("boxes", len(boxes)),
        ("workspaces with boxes", ", ".join(workspaces)),
        ("api keys", len(keys)),
    ]
    return Reply(document, listing(pairs), _NOTES)


COMMANDS = (Command(("whoami",), "show the identity you connected with", "whoami", _run),)
