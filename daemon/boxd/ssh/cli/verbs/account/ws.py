"""`ws`: workspaces. Each has its own box names and its own drive."""

from __future__ import annotations

from typing import TYPE_CHECKING

from boxd.model.progress import Progress
from boxd.names.words import DEFAULT_WORKSPACE
from boxd.ssh.cli.command import Call, Command, Reply
from boxd.ssh.cli.table import format_size, format_time, table

if TYPE_CHECKING:
    import argparse

    from boxd.model.workspace import WorkspaceView

_NO_PROFILE = "-"


def _name_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("ws")


def _rm_arguments(parser: argparse.ArgumentParser) -> None:
    _name_argument(parser)
    parser.add_argument("--force", action="store_true")


def _profile_arguments(parser: argparse.ArgumentParser) -> None:
    _name_argument(parser)
    parser.add_argument("profile", metavar="profile|-")


async def _ls(call: Call) -> Reply:
    return _list_reply(await call.operations.workspaces.list_workspaces(call.principal))


async def _create(call: Call) -> Reply:
    return _reply(await call.operations.workspaces.create_workspace(call.principal, call.args.ws))


async def _profile(call: Call) -> Reply:
    name = call.args.profile
    profile = None if name == _NO_PROFILE else name
    return _reply(
        await call.operations.workspaces.set_workspace_profile(
            call.principal, call.args.ws, profile
        )
    )


async def _rm(call: Call) -> Reply:
    notes: list[str] = []
    workspace = await call.operations.workspaces.remove_workspace(
        call.principal, call.args.ws, force=call.args.force, progress=Progress(notes.append)
    )
    return Reply({"removed": workspace.name}, f"removed workspace {workspace.name}\n", notes)


def _reply(view: WorkspaceView) -> Reply:
    return Reply(view.to_json(), _table([view]))


def _list_reply(views: list[WorkspaceView]) -> Reply:
    return Reply([view.to_json() for view in views], _table(views))


def _table(views: list[WorkspaceView]) -> str:
    rows = [
        (
            view.name or DEFAULT_WORKSPACE,
            view.boxes,
            format_size(view.drive.bytes) if view.drive else None,
            view.profile,
            format_time(view.created),
        )
        for view in views
    ]
    return table(("NAME", "BOXES", "BYTES", "PROFILE", "CREATED"), rows)


COMMANDS = (
    Command(("ws", "ls"), "list your workspaces", "ws ls", _ls),
    Command(("ws", "create"), "create a workspace", "ws create api", _create, _name_argument),
    Command(
        ("ws", "rm"),
        "remove a workspace; with --force also its boxes, their snapshots and its drive",
        "ws rm api --force",
        _rm,
        _rm_arguments,
    ),
    Command(
        ("ws", "profile"),
        "set the default profile of its new boxes; - removes it",
        "ws profile api py",
        _profile,
        _profile_arguments,
    ),
)
