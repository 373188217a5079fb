"""The trash of a workspace's drive: list removed files, and restore them.

The callers are HTTP, MCP and the programs of a box. A box has access to the trash of its own
workspace only. Its agent forwards requests of the box's root only, because the list shows all
names, and a restore writes to any directory.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from box_guest import protocol
from boxd.authz import Action, require
from boxd.errors import BoxdError, Conflict, NotFound, Unavailable
from boxd.tasks import BackgroundTasks
from boxd.workspaces import trash

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from boxd.operations.drives import DriveOperations
    from boxd.principal import Principal
    from boxd.store.interface import ControlStore
    from boxd.workspaces.drive import Filesystem
    from boxd.workspaces.trash import Removed, Restored, RestoreRequest, TrashPage, TrashQuery

    Opening = AbstractAsyncContextManager[Filesystem | None]

ANSWER_S = 50.0
"""Seconds that a caller waits for a restore. A program in a box waits 60 s for an answer."""
AT_ONCE = 2
"""Maximum number of restores that run in this process. Each loads the list of a whole trash."""
_BOX_PAGE = 48 * 1024
"""Maximum size of one page for a box, in bytes. The page is one line of the box's protocol."""
_BOX_MISSING = 24 * 1024
"""Maximum size of the paths that stay in the trash, in one answer to a box, in bytes."""
_log = logging.getLogger(__name__)


class TrashOperations:
    """Lists and restores removed files.

    A restore runs to its end even if its caller leaves. `_restoring` has the owners whose restore
    runs or waits: one restore for each owner, AT_ONCE in all.
    """

    def __init__(
        self, store: ControlStore, drives: DriveOperations, *, answer_s: float = ANSWER_S
    ) -> None:
        self._store = store
        self._drives = drives
        self._answer_s = answer_s
        self._restoring: set[str] = set()
        self._turn = asyncio.Semaphore(AT_ONCE)
        self._tasks = BackgroundTasks()

    async def close(self) -> None:
        """End the running restores. Entries that are restored already stay restored."""
        await self._tasks.close()

    async def list_trash(self, p: Principal, query: TrashQuery, ws: str | None = None) -> TrashPage:
        """Return one page of removed entries, the newest first.

        Raises BadRequest, and NotFound and Unavailable as `DriveOperations.open` does.
        """
        async with self._drives.open(p, ws) as filesystem:
            return await trash.read_page(filesystem, query)

    async def restore(
        self, p: Principal, request: RestoreRequest, ws: str | None = None
    ) -> Restored:
        """Restore a removed entry with everything that was removed from it.

        Raises BadRequest, NotFound, DriveFull; Conflict if the path exists or another restore of
        the owner runs; Unavailable if the restore takes longer than ANSWER_S seconds. In that case
        it continues.
        """
        require(p, Action.WRITE_DRIVE)
        return await self._restored(p.owner, request, self._drives.open(p, ws))

    async def request_of_box(
        self, box_id: str, verb: str, params: dict[str, Any]
    ) -> dict[str, Any]:
        """Serve `trash_list` or `trash_restore` for the agent of a box.

        The tunnel authenticates the box, and `protocol.request_parameters` has checked `params`.
        """
        box = await self._store.box(box_id)
        if box is None:
            raise NotFound("no such box")
        opening = self._drives.open_for(box)
        if verb == protocol.TRASH_LIST:
            query = trash.TrashQuery(
                below=_encoded(params["path"]),
                cursor=params["cursor"],
                limit=params["limit"],
                size=_BOX_PAGE,
            )
            async with opening as filesystem:
                page = await trash.read_page(filesystem, query)
            return {"entries": [_entry(one) for one in page.entries], "cursor": page.cursor}
        request = trash.RestoreRequest(
            path=_optional(params["path"]), number=params["number"], to=_optional(params["to"])
        )
        return _result(await self._restored(box.owner, request, opening))

    async def _restored(self, owner: str, request: RestoreRequest, opening: Opening) -> Restored:
        """Start a restore and wait for it, at most for the time that a caller waits."""
        trash.check_request(request)
        label = trash.label_of(request)
        if owner in self._restoring:
            raise Conflict(f"{label}: another restore is running; try again when it has finished")
        self._restoring.add(owner)
        task = self._tasks.start(
            self._run(owner, request, opening), name=f"restore {label}", awaited=True
        )
        try:
            await asyncio.wait({task}, timeout=self._answer_s)
        finally:
            if not task.done():
                task.add_done_callback(_log_failure)
        if not task.done():
            raise Unavailable(
                f"{label}: the restore takes longer than {self._answer_s:g} s and continues; list "
                "the trash later to see which entries are left"
            )
        return task.result()

    async def _run(self, owner: str, request: RestoreRequest, opening: Opening) -> Restored:
        try:
            async with self._turn, opening as filesystem:
                return await trash.restore(filesystem, request)
        finally:
            self._restoring.discard(owner)


def _entry(removed: Removed) -> dict[str, Any]:
    """Return an entry as a box sees it; the names keep their bytes as surrogate escapes."""
    return {
        "number": removed.number,
        "path": None if removed.path is None else _decoded(removed.path),
        "name": _decoded(removed.name),
        "is_dir": removed.is_dir,
        "is_link": removed.is_link,
        "size": removed.size,
        "deleted": removed.deleted.isoformat(),
    }


def _result(restored: Restored) -> dict[str, Any]:
    missing: list[list[str]] = []
    size = 0
    for path, reason in restored.missing:
        size += trash.ESCAPED * len(path) + len(reason)
        if size > _BOX_MISSING:
            break
        missing.append([_decoded(path), reason])
    return {
        "path": _decoded(restored.path),
        "files": restored.files,
        "directories": restored.directories,
        "missing": missing,
        "missing_count": restored.missing_count,
        "earlier_count": restored.earlier_count,
    }


def _decoded(path: bytes) -> str:
    return path.decode("utf-8", "surrogateescape")


def _encoded(path: str) -> bytes:
    return path.encode("utf-8", "surrogateescape")


def _optional(path: str | None) -> bytes | None:
    return None if path is None else _encoded(path)


def _log_failure(task: asyncio.Task[Restored]) -> None:
    """Log the failure of a restore whose caller has left."""
    error = None if task.cancelled() else task.exception()
    if isinstance(error, BoxdError):
        _log.info("%s failed after its caller had left: %s", task.get_name(), error)
    elif error is not None:
        _log.error("%s failed after its caller had left", task.get_name(), exc_info=error)
