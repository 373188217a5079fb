"""Protocol adapter only. `/v1/trash`: list and restore removed files of a drive."""

from __future__ import annotations

import re

from starlette.responses import JSONResponse, Response

from boxd.errors import BadRequest
from boxd.http.description.operation import (
    WS,
    Json,
    Operation,
    answer,
    errors,
    path,
    query,
    ref,
)
from boxd.http.routes.json_route import Caller, JsonRequest, json_route
from boxd.http.routes.wrk import FILE
from boxd.operations.volumes.trash import ANSWER_S
from boxd.workspaces.trash import (
    CURSOR,
    DEFAULT_PAGE,
    MAX_PAGE,
    RestoreRequest,
    TrashQuery,
)

_PATH = {"type": "string", "pattern": FILE}
_NUMBER = "^[1-9][0-9]{0,17}$"
_ENTRY: Json = {
    "number": 4711,
    "path": "/src/main.c",
    "name": "main.c",
    "is_dir": False,
    "is_link": False,
    "size": 1024,
    "deleted": "2026-01-02T03:04:05+00:00",
}
_RESTORED: Json = {
    "path": "/src/main.c",
    "files": 1,
    "directories": 0,
    "missing": [],
    "missing_count": 0,
    "earlier_count": 0,
}


@json_route(
    "GET",
    "/v1/trash",
    Operation(
        "listTrash",
        "Files",
        "List removed files",
        "Returns removed files and directories that can be restored, the newest first. Pass `next`"
        " of the response as `cursor` to get the following entries; a page may be short, or empty,"
        " although more entries follow.",
        {
            "200": answer(
                "One page of the list.", ref("Trash"), {"entries": [_ENTRY], "next": None}
            ),
            **errors(404, 429),
        },
        (
            query(
                "path",
                "Return only entries at or below this path on the drive.",
                type="string",
                pattern=f"^/*$|{FILE}",
            ),
            query("cursor", "`next` of the previous page.", type="string", pattern=f"^{CURSOR}$"),
            query(
                "limit",
                "The maximum number of entries.",
                type="integer",
                minimum=1,
                maximum=MAX_PAGE,
                default=DEFAULT_PAGE,
            ),
            WS,
        ),
    ),
)
async def list_trash(request: JsonRequest) -> Response:
    """Return one page of the trash of the workspace's drive."""
    caller = await request.caller()
    cursor = _value(request, "cursor")
    trash_query = TrashQuery(
        below=_value(request, "path") or b"",
        cursor=None if cursor is None else cursor.decode("latin-1"),
        limit=_limit(request),
    )
    page = await caller.operations.trash.list_trash(caller.principal, trash_query, caller.ws)
    return JSONResponse({"entries": [one.to_json() for one in page.entries], "next": page.cursor})


_TO = query(
    "to",
    "The new path. Its directory must exist. Without it, the entry is restored at its former path.",
    **_PATH,
)
_ABOUT = (
    " A directory is restored with everything that was removed from it. Owner, mode and content are"
    " those before the removal. Nothing is replaced: if the path exists, the response is 409. If"
    " both are directories, the entries are restored into the existing one. Entries whose paths"
    f" exist stay in the trash and are listed in `missing`. After {ANSWER_S:g} seconds the response"
    " is 503, and the restore continues."
)
_RESPONSES: Json = {
    "200": answer("The restored entry.", ref("Restored"), _RESTORED),
    **errors(404, 409, 429, 507),
}


@json_route(
    "POST",
    "/v1/trash/restore",
    Operation(
        "restorePath",
        "Files",
        "Restore a removed file or directory",
        "Restores the newest entry of a path, and missing directories above it." + _ABOUT,
        _RESPONSES,
        (
            {**query("path", "The former path on the drive.", **_PATH), "required": True},
            _TO,
            WS,
        ),
    ),
)
async def restore_path(request: JsonRequest) -> Response:
    """Restore the newest entry of a path and return its new path."""
    caller = await request.caller()
    former_path = _value(request, "path")
    if former_path is None:
        raise BadRequest("?path= is missing; give the former path of the removed file")
    return await _restore(caller, RestoreRequest(path=former_path, to=_value(request, "to")))


@json_route(
    "POST",
    "/v1/trash/{number}/restore",
    Operation(
        "restoreEntry",
        "Files",
        "Restore an entry of the list of removed files",
        "Restores the entry of a number, also one whose former path is unknown." + _ABOUT,
        _RESPONSES,
        (
            path("number", "The number of the entry in the list.", "4711", pattern=_NUMBER),
            _TO,
            WS,
        ),
    ),
)
async def restore_entry(request: JsonRequest) -> Response:
    """Restore the entry of a number and return its new path."""
    caller = await request.caller()
    number = request.parameter("number")
    if re.fullmatch(_NUMBER, number) is None:
        raise BadRequest("the number of an entry is a whole number; see GET /v1/trash")
    return await _restore(caller, RestoreRequest(number=int(number), to=_value(request, "to")))


async def _restore(caller: Caller, request: RestoreRequest) -> Response:
    restored = await caller.operations.trash.restore(caller.principal, request, caller.ws)
    return JSONResponse(restored.to_json())


def _value(request: JsonRequest, name: str) -> bytes | None:
    """Return the only value of a query parameter, or None. Raises BadRequest for two values."""
    values = request.query(name)
    if len(values) > 1:
        raise BadRequest(f"the request has more than one ?{name}=; give one")
    return values[0] if values else None


def _limit(request: JsonRequest) -> int:
    value = _value(request, "limit")
    if value is None:
        return DEFAULT_PAGE
    if re.fullmatch(rb"[0-9]{1,9}", value) is None:
        raise BadRequest(f"?limit= must be 1 to {MAX_PAGE}")
    return int(value)


ROUTES = (list_trash, restore_path, restore_entry)
