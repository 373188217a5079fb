"""`snapshot`: states of boxes that are kept, brought back, and made into other boxes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from boxd.frontdoor.commands.boxrow import box_json, boxes_table
from boxd.frontdoor.commands.command import Call, Command, Reply, workspace_option
from boxd.frontdoor.commands.table import moment, size, table

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from boxd.model.snapshot import Snapshot


def _arguments(*names: str) -> Callable[[argparse.ArgumentParser], None]:
    def add(parser: argparse.ArgumentParser) -> None:
        workspace_option(parser)
        for name in names:
            required = not name.endswith("?")
            parser.add_argument(name.rstrip("?"), nargs=None if required else "?")

    return add


async def _create(call: Call) -> Reply:
    args = call.args
    snapshot = await call.operations.create_snapshot(call.principal, args.ref, args.name, args.ws)
    return Reply(snapshot.to_json(), _listed([snapshot]))


async def _ls(call: Call) -> Reply:
    found = await call.operations.list_snapshots(call.principal, call.args.ref, call.args.ws)
    return Reply([one.to_json() for one in found], _listed(found))


async def _rm(call: Call) -> Reply:
    args = call.args
    gone = await call.operations.remove_snapshot(call.principal, args.ref, args.name, args.ws)
    document = {"removed": gone.name, "box": gone.ref}
    return Reply(document, f"removed snapshot {gone.name} of {gone.ref}\n")


async def _restore(call: Call) -> Reply:
    args = call.args
    box = await call.operations.restore_snapshot(call.principal, args.ref, args.name, args.ws)
    note = f"box {box.ref} {box.detail}; what it was is kept as snapshot pre-restore"
    return Reply(box_json(call, box), table(("NAME", "STATE"), [(box.ref, box.state)]), [note])


async def _fork(call: Call) -> Reply:
    args, said = call.args, list[str]()
    box = await call.operations.fork(
        call.principal, args.base, args.name, args.ws, notes=said.append
    )
    if box.detail:
        said.append(f"box {box.ref} {box.detail}")
    return Reply(box_json(call, box), boxes_table(call, [box]), said)


def _listed(snapshots: list[Snapshot]) -> str:
    rows = [
        (
            one.name,
            one.ref,
            "disk, memory" if one.memory else "disk",
            size(one.size_bytes) if one.size_bytes else None,
            moment(one.created),
        )
        for one in snapshots
    ]
    return table(("SNAPSHOT", "BOX", "KIND", "SIZE", "CREATED"), rows)


COMMANDS = (
    Command(
        ("snapshot", "create"),
        "keep the state of a box, disk and memory",
        "snapshot create web before-upgrade",
        _create,
        _arguments("ref", "name?"),
    ),
    Command(("snapshot", "ls"), "list snapshots", "snapshot ls web", _ls, _arguments("ref?")),
    Command(
        ("snapshot", "restore"),
        "bring a kept state back into its box",
        "snapshot restore web before-upgrade",
        _restore,
        _arguments("ref", "name"),
    ),
    Command(
        ("snapshot", "rm"),
        "remove a snapshot",
        "snapshot rm web before-upgrade",
        _rm,
        _arguments("ref", "name"),
    ),
    Command(
        ("snapshot", "fork"),
        "make a box of a box as it is now, or of BOX@SNAPSHOT",
        "snapshot fork web 'web2^2h'",
        _fork,
        _arguments("base", "name"),
    ),
)
