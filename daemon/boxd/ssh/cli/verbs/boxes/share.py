"""`share`: tokens that open one box to people without its owner's key."""

from __future__ import annotations

from typing import TYPE_CHECKING

from boxd.names.duration import parse_duration
from boxd.ssh.cli.command import Call, Command, Reply, workspace_option
from boxd.ssh.cli.table import format_time, table

if TYPE_CHECKING:
    import argparse


_ID_DIGITS = 12
"""Number of digits of an id in a table. `share rm` accepts fewer if they identify one share."""


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
    """Write only the ssh command to stdout, so that a script can pass it on."""
    args = call.args
    ttl = None if args.ttl is None else parse_duration(args.ttl, "share ttl")
    shared, token = await call.operations.shares.create_share(
        call.principal, args.ref, args.ws, ttl=ttl
    )
    ssh = call.endpoint.ssh_command(token.reveal())
    share = shared.share
    until = (
        "until it is revoked" if share.expires is None else f"until {format_time(share.expires)}"
    )
    notes = [
        f"opens box {shared.ref}, including /wrk, to everyone who has this command, {until};"
        " it is shown only once",
        f"to revoke it: share rm {share.id[:_ID_DIGITS]}",
    ]
    return Reply(shared.to_json() | {"token": token.reveal(), "ssh": ssh}, ssh + "\n", notes)


async def _ls(call: Call) -> Reply:
    shares = await call.operations.shares.list_shares(call.principal, call.args.ref, call.args.ws)
    rows = [
        (
            shared.share.id[:_ID_DIGITS],
            shared.ref,
            format_time(shared.share.created),
            format_time(shared.share.expires),
            format_time(shared.share.last_used),
        )
        for shared in shares
    ]
    columns = ("ID", "BOX", "CREATED", "EXPIRES", "LAST USED")
    return Reply([shared.to_json() for shared in shares], table(columns, rows))


async def _rm(call: Call) -> Reply:
    shared = await call.operations.shares.remove_share(call.principal, call.args.id)
    text = f"removed share {shared.share.id[:_ID_DIGITS]} of {shared.ref}\n"
    return Reply({"removed": shared.share.id, "box": shared.ref}, text)


COMMANDS = (
    Command(
        ("share",),
        "open a box to everyone who gets the command; it is shown once",
        "share web --ttl 1d",
        _create,
        _create_arguments,
    ),
    Command(
        ("share", "create"),
        "like share, but works even for a box named ls, rm or create",
        "share create web --ttl 1d",
        _create,
        _create_arguments,
    ),
    Command(("share", "ls"), "list shares", "share ls web", _ls, _ls_arguments),
    Command(("share", "rm"), "revoke a share", "share rm 0f3a", _rm, _rm_arguments),
)
