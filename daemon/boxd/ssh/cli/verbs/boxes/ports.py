"""`ports`: the ports on which programs in a box listen, and the URLs of their previews."""

from __future__ import annotations

from typing import TYPE_CHECKING

from boxd.names.preview import preview_url
from boxd.ssh.cli.command import Call, Command, Reply, workspace_option
from boxd.ssh.cli.table import table

if TYPE_CHECKING:
    import argparse

_COLUMNS = ("PORT", "ADDRESS", "PREVIEW")


def _arguments(parser: argparse.ArgumentParser) -> None:
    workspace_option(parser)
    parser.add_argument("ref")


async def _run(call: Call) -> Reply:
    box, ports = await call.operations.ports.list_ports(call.principal, call.args.ref, call.args.ws)
    authority = call.endpoint.preview_authority
    documents = [port.to_json(box.id, preview_url(box.id, port.port, authority)) for port in ports]
    rows = [(one["port"], one["address"], one["url"] or one["path"]) for one in documents]
    return Reply(documents, table(_COLUMNS, rows))


COMMANDS = (
    Command(
        ("ports",),
        "list the ports on which programs in a running box listen",
        "ports web",
        _run,
        _arguments,
    ),
)
