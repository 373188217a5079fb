"""`info`: all details of one box.

`boxd.model.view` defines the fields and their JSON form for the CLI, HTTP and MCP.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from boxd.names.duration import format_duration
from boxd.ssh.cli.box_row import (
    attachment_counts,
    box_json,
    deadline,
    next_event,
    pin_end,
    preview_host,
    removal,
    ssh_command,
    usage_pairs,
)
from boxd.ssh.cli.command import Call, Command, Reply, workspace_option
from boxd.ssh.cli.table import format_span, format_time, key_value_lines

if TYPE_CHECKING:
    import argparse


def _arguments(parser: argparse.ArgumentParser) -> None:
    workspace_option(parser)
    parser.add_argument("ref")


async def _run(call: Call) -> Reply:
    box = await call.operations.boxes.inspect(call.principal, call.args.ref, call.args.ws)
    pairs = [
        ("name", box.ref),
        ("id", box.id),
        ("state", box.state),
        ("detail", box.detail),
        ("image", box.image),
        ("flavor", box.flavor),
        ("profile", box.profile),
        ("cpus", box.cpus),
        ("memory", f"{box.mem_mb} MiB"),
        ("disk limit", f"{box.disk_mb} MiB" if box.disk_mb else None),
        ("process limit", box.pids),
        ("runtime", box.runtime or "default"),
        ("containers", "allowed" if box.containers else "no"),
        ("suspend", f"never: {box.no_suspend}" if box.no_suspend else "when idle"),
        ("egress", box.egress),
        ("drive", "yes" if box.drive else "no"),
        ("confidential", "yes" if box.confidential else "no"),
        ("created", format_time(box.created)),
        ("age", format_span(box.age_s)),
        ("deadline", deadline(box)),
        ("next", next_event(call, box)),
        ("removal", removal(call, box)),
        ("grace", None if box.grace is None else format_duration(box.grace)),
        ("durable", "yes" if box.durable else "no"),
        ("auto-suspend", "on" if box.auto_suspend else "off"),
        ("pinned until", pin_end(box)),
        ("memory kept", "yes" if box.memory else "no"),
        ("attached", box.attached),
        ("why", attachment_counts(box)),
        *usage_pairs(box),
        ("ssh", ssh_command(call, box)),
        *([("preview", host)] if (host := preview_host(call, box)) else ()),
    ]
    return Reply(box_json(call, box), key_value_lines(pairs))


COMMANDS = (Command(("info",), "show all details of one box", "info web", _run, _arguments),)
