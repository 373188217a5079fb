"""`snapshot`: save the state of a box, restore it, or create another box from it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from boxd.model.progress import Progress
from boxd.ssh.cli.box_row import box_json, boxes_table
from boxd.ssh.cli.command import Call, Command, Reply, workspace_option
from boxd.ssh.cli.table import format_size, format_time, table

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from boxd.model.snapshot import SnapshotView


def _arguments(*names: str) -> Callable[[argparse.ArgumentParser], None]:
    def add(parser: argparse.ArgumentParser) -> None:
        workspace_option(parser)
        for name in names:
            required = not name.endswith("?")
            parser.add_argument(name.rstrip("?"), nargs=None if required else "?")

    return add


async def _create(call: Call) -> Reply:
    args = call.args
    snapshot = await call.operations.snapshots.create_snapshot(
        call.principal, args.ref, args.name, args.ws
    )
    return Reply(snapshot.to_json(), _table([snapshot]))


async def _ls(call: Call) -> Reply:
    views = await call.operations.snapshots.list_snapshots(
        call.principal, call.args.ref, call.args.ws
    )
    return Reply([view.to_json() for view in views], _table(views))


async def _rm(call: Call) -> Reply:
    args = call.args
    snapshot = await call.operations.snapshots.remove_snapshot(
        call.principal, args.ref, args.name, args.ws
    )
    document = {"removed": snapshot.name, "box": snapshot.ref}
    return Reply(document, f"removed snapshot {snapshot.name} of {snapshot.ref}\n")


async def _restore(call: Call) -> Reply:
    args = call.args
    box = await call.operations.snapshots.restore_snapshot(
        call.principal, args.ref, args.name, args.ws
    )
    note = f"box {box.ref} {box.detail}; its previous state is kept as snapshot pre-restore"
    return Reply(box_json(call, box), table(("NAME", "STATE"), [(box.ref, box.state)]), [note])


async def _fork(call: Call) -> Reply:
    args, notes = call.args, list[str]()
    box = await call.operations.snapshots.fork(
        call.principal, args.base, args.name, args.ws, progress=Progress(notes.append)
    )
    if box.detail:
        notes.append(f"box {box.ref} {box.detail}")
    return Reply(box_json(call, box), boxes_table(call, [box]), notes)


def _table(views: list[SnapshotView]) -> str:
    """Return a table of snapshots that marks removed boxes."""
    rows = [
        (
            view.snapshot.name,
            f"{view.snapshot.ref} (removed)" if view.box_removed else view.snapshot.ref,
            "disk, memory" if view.snapshot.memory else "disk",
            format_size(view.snapshot.size_bytes) if view.snapshot.size_bytes else None,
            format_time(view.snapshot.created),
        )
        for view in views
    ]
    return table(("SNAPSHOT", "BOX", "KIND", "SIZE", "CREATED"), rows)


COMMANDS = (
    Command(
        ("snapshot", "create"),
        "save the disk and memory of a box",
        "snapshot create web before-upgrade",
        _create,
        _arguments("ref", "name?"),
    ),
    Command(("snapshot", "ls"), "list snapshots", "snapshot ls web", _ls, _arguments("ref?")),
    Command(
        ("snapshot", "restore"),
        "restore a box to a snapshot",
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
        "create a box from the current state of a box, or from BOX@SNAPSHOT",
        "snapshot fork web 'web2^2h'",
        _fork,
        _arguments("base", "name"),
    ),
)
