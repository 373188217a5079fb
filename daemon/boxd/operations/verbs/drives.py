"""Verbs about drives."""

from __future__ import annotations

from boxd.operations.verbs.verb import Verb

_FILES = "a box reaches its drive as files: ssh, scp, sftp and rsync work on /wrk"

VERBS: tuple[Verb, ...] = (
    Verb(
        method="drives.open",
        about="read and write files of a drive",
        http=(
            "GET /v1/wrk/{path...}",
            "PUT /v1/wrk/{path...}",
            "DELETE /v1/wrk/{path...}",
        ),
        mcp=("wrk_list", "wrk_read", "wrk_write", "wrk_mkdir", "wrk_delete"),
        missing=(("ssh", _FILES),),
    ),
    Verb(
        method="trash.list_trash",
        about="list removed files",
        http=("GET /v1/trash",),
        mcp=("wrk_trash",),
        missing=(("ssh", "in a box: `box-guest trash ls`"),),
    ),
    Verb(
        method="trash.restore",
        about="restore removed files",
        http=("POST /v1/trash/restore", "POST /v1/trash/{number}/restore"),
        mcp=("wrk_restore",),
        missing=(("ssh", "in a box: `box-guest trash restore`"),),
    ),
    Verb(
        method="copies.list_snapshots",
        about="list snapshots of a drive",
        http=("GET /v1/drive/snapshots",),
        mcp=("wrk_snapshots",),
        missing=(("ssh", "in a box: the directory /wrk/.snapshots lists them"),),
    ),
    Verb(
        method="copies.create_snapshot",
        about="create a snapshot of a drive",
        http=("POST /v1/drive/snapshots",),
        mcp=("wrk_snapshot",),
        missing=(("ssh", _FILES),),
    ),
    Verb(
        method="copies.remove_snapshot",
        about="remove a snapshot of a drive",
        http=("DELETE /v1/drive/snapshots/{name}",),
        mcp=("wrk_snapshot_remove",),
        missing=(("ssh", _FILES),),
    ),
    Verb(
        method="copies.restore_snapshot",
        about="copy files of a snapshot back",
        http=("POST /v1/drive/snapshots/{name}/restore",),
        mcp=("wrk_snapshot_restore",),
        missing=(("ssh", "in a box: `cp -r /wrk/.snapshots/NAME/...`"),),
    ),
    Verb(
        method="copies.clone",
        about="copy a file or directory without copying its bytes",
        http=("POST /v1/drive/clone",),
        mcp=("wrk_clone",),
        missing=(("ssh", "in a box: `cp --reflink`"),),
    ),
    Verb(
        method="copies.move",
        about="move a file or directory",
        http=("POST /v1/drive/move",),
        mcp=("wrk_move",),
        missing=(("ssh", _FILES),),
    ),
)
