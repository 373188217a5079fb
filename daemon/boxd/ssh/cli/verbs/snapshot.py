"""`snapshot`: states of boxes that are kept, brought back, and made into other boxes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from boxd.model.progress import Progress
from boxd.ssh.cli.box_row import box_json, boxes_table
from boxd.ssh.cli.command import Call, Command, Reply, workspace_option
from boxd.ssh.cli.table import moment, size, table

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
    return Reply(snapshot.to_json(), _listed([snapshot]))


async def _ls(call: Call) -> Reply:
    found = await call.operations.snapshots.list_snapshots(
        call.principal, call.args.ref, call.args.ws
    )
    return Reply([one.to_json() for one in found], _listed(found))


async def _rm(call: Call) -> Reply:
    args = call.args
    gone = await call.operations.snapshots.remove_snapshot(
        call.principal, args.ref, args.name, args.ws
    )
    document = {"removed": gone.name, "box": gone.ref}
    return Reply(document, f"removed snapshot {gone.name} of {gone.ref}\n")


async def _restore(call: Call) -> Reply:
    args = call.args
    box = await call.operations.snapshots.restore_snapshot(
        call.principal, args.ref, args.name, args.ws
    )
    note = f"box {box.ref} {box.detail}; what it was is kept as snapshot pre-restore"
    return Reply(box_json(call, box), table(("NAME", "STATE"), [(box.ref, box.state)]), [note])


async def _fork(call: Call) -> Reply:
    args, said = call.args, list[str]()
    box = await call.operations.snapshots.fork(
        call.principal, args.base, args.name, args.ws, progress=Progress(said.append)
    )
    if box.detail:
        said.append(f"box {box.ref} {box.detail}")
    return Reply(box_json(call, box), boxes_table(call, [box]), said)


def _listed(views: list[SnapshotView]) -> str:
    """A removed box is marked beside its name."""
    rows = [
        (
            view.snapshot.name,
            f"{view.snapshot.ref} (removed)" if view.box_removed else view.snapshot.ref,
            "disk, memory" if view.snapshot.memory else "disk",
            size(view.snapshot.size_bytes) if view.snapshot.size_bytes else None,
            moment(view.snapshot.created),
        )
        for view in views
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
