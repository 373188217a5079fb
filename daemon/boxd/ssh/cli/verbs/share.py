"""`share`: links to one box for people without its owner's key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from boxd.names.duration import parse_duration
from boxd.ssh.cli.command import Call, Command, Reply, workspace_option
from boxd.ssh.cli.table import moment, table

if TYPE_CHECKING:
    import argparse

    from boxd.operations.shares import SharedBox

_ID = 12
"""Digits of an id that a table shows; `share rm` takes any that begin one alone."""


def _create_arguments(parser: argparse.ArgumentParser) -> None:
    workspace_option(parser)
    parser.add_argument("ref")
    parser.add_argument("--ttl", metavar="DURATION")


def _ls_arguments(parser: argparse.ArgumentParser) -> None:
    workspace_option(parser)
    parser.add_argument("ref", nargs="?")


def _rm_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id")


async def _create(call: Call) -> Reply:
    """What to type stands alone on stdout, so that a script can pass it on."""
    args = call.args
    ttl = None if args.ttl is None else parse_duration(args.ttl, "share ttl")
    one, secret = await call.operations.shares.create_share(
        call.principal, args.ref, args.ws, ttl=ttl
    )
    ssh = call.door.ssh(secret.reveal())
    share = one.share
    until = "until it is revoked" if share.expires is None else f"until {moment(share.expires)}"
    notes = [
        f"opens box {one.ref}, /wrk in it included, to everybody who has it, {until};"
        " it is shown only this once",
        f"revoke it: share rm {share.id[:_ID]}",
    ]
    return Reply(_json(one) | {"token": secret.reveal(), "ssh": ssh}, ssh + "\n", notes)


async def _ls(call: Call) -> Reply:
    found = await call.operations.shares.list_shares(call.principal, call.args.ref, call.args.ws)
    rows = [
        (
            one.share.id[:_ID],
            one.ref,
            moment(one.share.created),
            moment(one.share.expires),
            moment(one.share.last_used),
        )
        for one in found
    ]
    columns = ("ID", "BOX", "CREATED", "EXPIRES", "LAST USED")
    return Reply([_json(one) for one in found], table(columns, rows))


async def _rm(call: Call) -> Reply:
    gone = await call.operations.shares.remove_share(call.principal, call.args.id)
    text = f"removed share {gone.share.id[:_ID]} of {gone.ref}\n"
    return Reply({"removed": gone.share.id, "box": gone.ref}, text)


def _json(one: SharedBox) -> dict[str, Any]:
    share = one.share
    return {
        "id": share.id,
        "box": one.ref,
        "box_id": share.box_id,
        "created": share.created.isoformat(),
        "expires": share.expires.isoformat() if share.expires else None,
        "last_used": share.last_used.isoformat() if share.last_used else None,
    }


COMMANDS = (
    Command(
        ("share",),
        "open a box to whoever gets the link; it is shown once",
        "share web --ttl 1d",
        _create,
        _create_arguments,
    ),
    Command(
        ("share", "create"),
        "the same, also for a box named ls, rm or create",
        "share create web --ttl 1d",
        _create,
        _create_arguments,
    ),
    Command(("share", "ls"), "list shares", "share ls web", _ls, _ls_arguments),
    Command(("share", "rm"), "revoke a share", "share rm 0f3a", _rm, _rm_arguments),
)
