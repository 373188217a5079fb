"""`fleet` and `box_*`: list, create, suspend, resume, fork, pin, keep and remove boxes."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from boxd.errors import Pinned
from boxd.mcp.tools.params import Param
from boxd.mcp.tools.shapes import (
    BOOLEAN,
    BOX,
    BOX_OPTIONAL,
    INTEGER,
    NULLABLE_STRING,
    STRING,
    list_of,
)
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
WS = Param("ws", "string", "the workspace (default: your default workspace)")


async def fleet_json(
    operations: Operations, principal: Principal, ws: str | None = None
) -> dict[str, Any]:
    """Return the boxes and open questions that a principal may see; `ws`: of one workspace only."""
    views = await operations.boxes.list_boxes(principal, ws, everywhere=ws is None)
    asks = await operations.asks.list_asks(principal)
    return {
        "boxes": [view.to_json() for view in views],
        "asks": [ask.to_json() for ask in asks if ws is None or ask.ask.workspace == fold(ws)],
    }


async def _fleet(call: Call) -> dict[str, Any]:
    fleet = await fleet_json(call.operations, call.principal, call.args["ws"])
    limits = await call.operations.stats.box_limits(call.principal)
    return fleet | {"quota": {limit.what: limit.to_json() for limit in limits}}


async def _info(call: Call) -> dict[str, Any]:
    view = await call.operations.boxes.inspect(call.principal, call.args["box"])
    return view.to_json()


async def _ports(call: Call) -> dict[str, Any]:
    box, ports = await call.operations.ports.list_ports(call.principal, call.args["box"])
    return {"ports": [port.to_json(box.id, None) for port in ports]}


async def _unpin(call: Call) -> dict[str, Any]:
    view = await call.operations.boxes.unpin(call.principal, call.args["box"])
    return view.to_json()


async def _spawn(call: Call) -> dict[str, Any]:
    created = False

    def set_created(box: Box) -> None:
        nonlocal created
        created = box.state is BoxState.CREATING

    durable = True if call.args["durable"] else None
    view = await call.operations.boxes.up(
        call.principal,
        call.args["spec"],
        durable=durable,
        progress=Progress(call.report_progress, set_created),
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
        call.principal,
        call.args["base"],
        call.args["name"],
        progress=Progress(call.report_progress),
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


async def _keep(call: Call) -> dict[str, Any]:
    view = await call.operations.boxes.keep(
        call.principal, call.args["box"], durable=call.args["durable"]
    )
    return view.to_json()


_STATE = {"id": STRING, "state": STRING}

TOOLS = (
    Tool(
        "fleet",
        "List boxes, questions and limits",
        "List your boxes with their states, the open questions of programs in them, and your "
        "limits.",
        _fleet,
        (Param("ws", "string", "only this workspace (default: all that you may see)"),),
        {
            "boxes": list_of(BOX),
            "asks": list_of({"id": STRING, "question": STRING}),
            "quota": {"type": "object"},
        },
        read_only=True,
    ),
    Tool(
        "box_spawn",
        "Create or wake a box",
        "Create and start a box. If a box with this name exists, resume it.",
        _spawn,
        (
            Param(
                "spec",
                "string",
                "[WORKSPACE/]NAME[+][!][:IMAGE[:FLAVOR]][^DEADLINE][+GRACE], for example "
                "dev:debian^2h. NAME! is a durable box, NAME+ a new one",
                required=True,
            ),
            Param(
                "durable",
                "boolean",
                "keep the box until its deadline, or until you remove it, as NAME! does",
                default=False,
            ),
        ),
        BOX | {"created": BOOLEAN},
        BOX_OPTIONAL,
        idempotent=True,
    ),
    Tool(
        "box_info",
        "Show a box",
        "Show one box with all its settings, and the resources that it uses now.",
        _info,
        (REF,),
        BOX,
        BOX_OPTIONAL,
        read_only=True,
    ),
    Tool(
        "box_ports",
        "List the ports of a box",
        "List the TCP ports on which programs in a running box listen.",
        _ports,
        (REF,),
        {"ports": list_of({"port": INTEGER, "address": STRING, "path": NULLABLE_STRING})},
        read_only=True,
    ),
    Tool(
        "box_suspend",
        "Suspend a box",
        "Suspend a box: write its memory to disk. Its processes continue when it resumes.",
        _suspend,
        (REF,),
        _STATE,
        idempotent=True,
    ),
    Tool(
        "box_resume",
        "Resume a box",
        "Resume a suspended box.",
        _resume,
        (REF,),
        _STATE,
        idempotent=True,
    ),
    Tool(
        "box_rm",
        "Remove a box",
        "Remove a box and everything on its disk. The drive at /wrk stays. A pinned box is removed "
        "only with `force`.",
        _rm,
        (REF, Param("force", "boolean", "remove the box even if it is pinned", default=False)),
        {"removed": STRING},
        destructive=True,
    ),
    Tool(
        "box_fork",
        "Fork a box",
        "Create a box from a running or suspended box, with its disk and its processes.",
        _fork,
        (
            Param("base", "string", "the box to copy, or one of its snapshots: BOX@SNAPSHOT", True),
            Param("name", "string", "the new box: [WORKSPACE/]NAME[^DEADLINE][+GRACE]", True),
        ),
        BOX,
        BOX_OPTIONAL,
    ),
    Tool(
        "box_pin",
        "Keep a box awake",
        "Keep a box awake for a time, at most until its deadline.",
        _pin,
        (
            REF,
            Param(
                "for_s",
                "integer",
                "duration of the pin in seconds; 0 removes the pin",
                default=PIN_S,
                minimum=0,
                maximum=MAX_PIN_S,
            ),
            Param("why", "string", "the reason, shown beside the box", default=""),
        ),
        BOX,
        BOX_OPTIONAL,
        idempotent=True,
    ),
    Tool(
        "box_unpin",
        "Remove the pin of a box",
        "Remove the pin of a box, so that the service may suspend the box when it is idle.",
        _unpin,
        (REF,),
        BOX,
        BOX_OPTIONAL,
        idempotent=True,
    ),
    Tool(
        "box_keep",
        "Keep a box",
        "Make a box durable: the service removes it only at its deadline, not for being unused.",
        _keep,
        (
            REF,
            Param(
                "durable",
                "boolean",
                "false: the service may remove the box again when it is unused",
                default=True,
            ),
        ),
        BOX,
        BOX_OPTIONAL,
        idempotent=True,
    ),
)
