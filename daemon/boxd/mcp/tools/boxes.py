"""Boxes: what there is, making, sleeping, waking, forking, pinning, removing."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from boxd.errors import Pinned
from boxd.mcp.tools.params import Param
from boxd.mcp.tools.shapes import BOOLEAN, BOX, BOX_OPTIONAL, STRING, listed
from boxd.mcp.tools.tool import Call, Tool
from boxd.model.box import BoxState
from boxd.model.progress import Progress
from boxd.names.words import fold

if TYPE_CHECKING:
    from boxd.model.box import Box
    from boxd.operations import Operations
    from boxd.principal import Principal

PIN_S = 7200
MAX_PIN_S = 10 * 365 * 86_400

REF = Param(
    "box", "string", "the box: NAME, WORKSPACE/NAME, its id, or the beginning of its id", True
)
WS = Param("ws", "string", "a workspace; left out: your default one")


async def fleet_of(
    operations: Operations, principal: Principal, ws: str | None = None
) -> dict[str, Any]:
    """The boxes and open questions that a principal may see, or those of one workspace."""
    views = await operations.boxes.list_boxes(principal, ws, everywhere=ws is None)
    asks = await operations.asks.list_asks(principal)
    return {
        "boxes": [view.to_json() for view in views],
        "asks": [ask.to_json() for ask in asks if ws is None or ask.ask.workspace == fold(ws)],
    }


async def _fleet(call: Call) -> dict[str, Any]:
    found = await fleet_of(call.operations, call.principal, call.args["ws"])
    limits = await call.operations.stats.box_limits(call.principal)
    return found | {"quota": {one.what: one.to_json() for one in limits}}


async def _spawn(call: Call) -> dict[str, Any]:
    created = False

    def begun(box: Box) -> None:
        nonlocal created
        created = box.state is BoxState.CREATING

    durable = True if call.args["durable"] else None
    view = await call.operations.boxes.up(
        call.principal,
        call.args["spec"],
        durable=durable,
        progress=Progress(call.tell, begun),
    )
    return view.to_json() | {"created": created}


async def _suspend(call: Call) -> dict[str, Any]:
    view = await call.operations.boxes.suspend(call.principal, call.args["box"])
    return {"id": view.id, "state": view.state}


async def _resume(call: Call) -> dict[str, Any]:
    view = await call.operations.boxes.resume(call.principal, call.args["box"])
    return {"id": view.id, "state": view.state}


async def _rm(call: Call) -> dict[str, Any]:
    try:
        view = await call.operations.boxes.remove(
            call.principal, call.args["box"], force=call.args["force"]
        )
    except Pinned as error:
        remedy = "Set force to true to remove it, or call box_pin with for_s 0 first"
        raise Pinned(error.fact, remedy) from None
    return {"removed": view.id}


async def _fork(call: Call) -> dict[str, Any]:
    view = await call.operations.snapshots.fork(
        call.principal, call.args["base"], call.args["name"], progress=Progress(call.tell)
    )
    return view.to_json()


async def _pin(call: Call) -> dict[str, Any]:
    span = call.args["for_s"]
    if span == 0:
        view = await call.operations.boxes.unpin(call.principal, call.args["box"])
    else:
        view = await call.operations.boxes.pin(
            call.principal,
            call.args["box"],
            span=timedelta(seconds=span),
            why=call.args["why"],
        )
    return view.to_json()


_STATE = {"id": STRING, "state": STRING}

TOOLS = (
    Tool(
        "fleet",
        "List boxes, questions and limits",
        "Lists your boxes with their states, the open questions of programs in them, and your "
        "limits.",
        _fleet,
        (Param("ws", "string", "only this workspace; left out: all that you may see"),),
        {
            "boxes": listed(BOX),
            "asks": listed({"id": STRING, "question": STRING}),
            "quota": {"type": "object"},
        },
        reads=True,
    ),
    Tool(
        "box_spawn",
        "Create or wake a box",
        "Makes a box, or wakes the one of that name, and has it run.",
        _spawn,
        (
            Param(
                "spec",
                "string",
                "[WORKSPACE/]NAME[:IMAGE[:FLAVOR]][^DEADLINE][+GRACE], for example dev:debian^2h",
                required=True,
            ),
            Param("durable", "boolean", "only its deadline removes it by itself", default=False),
        ),
        BOX | {"created": BOOLEAN},
        BOX_OPTIONAL,
        repeatable=True,
    ),
    Tool(
        "box_suspend",
        "Suspend a box",
        "Puts a box to sleep: its memory goes to disk, and its processes go on when it wakes.",
        _suspend,
        (REF,),
        _STATE,
        repeatable=True,
    ),
    Tool("box_resume", "Resume a box", "Wakes a box.", _resume, (REF,), _STATE, repeatable=True),
    Tool(
        "box_rm",
        "Remove a box",
        "Destroys a box with all that is on its disk. The drive below /wrk stays. A pinned box is "
        "removed only with `force`.",
        _rm,
        (REF, Param("force", "boolean", "remove the box even if it is pinned", default=False)),
        {"removed": STRING},
        destroys=True,
    ),
    Tool(
        "box_fork",
        "Fork a box",
        "Makes a new box of a running or sleeping one, with its disk and its processes.",
        _fork,
        (
            Param("base", "string", "the box, or one of its snapshots: BOX@SNAPSHOT", True),
            Param("name", "string", "[WORKSPACE/]NAME[^DEADLINE][+GRACE] of the new box", True),
        ),
        BOX,
        BOX_OPTIONAL,
    ),
    Tool(
        "box_pin",
        "Keep a box awake",
        "Keeps a box awake for a time, at most until its deadline.",
        _pin,
        (
            REF,
            Param(
                "for_s",
                "integer",
                "seconds; 0 takes the pin away",
                default=PIN_S,
                minimum=0,
                maximum=MAX_PIN_S,
            ),
            Param("why", "string", "what it is for; shown beside the box", default=""),
        ),
        BOX,
        BOX_OPTIONAL,
        repeatable=True,
    ),
)
