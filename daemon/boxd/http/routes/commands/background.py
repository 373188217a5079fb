"""Protocol adapter only. `/v1/boxes/{ref}/commands`: background commands, as JSON."""

from __future__ import annotations

from msgspec import field
from starlette.responses import JSONResponse, Response

from boxd.boxes.commands.background import BackgroundRequest
from boxd.boxes.state.requests import BoxAccess
from boxd.http.description.boxes import REF
from boxd.http.description.operation import (
    JSON_TYPE,
    WS,
    Json,
    Operation,
    answer,
    array,
    errors,
    path,
    ref,
)
from boxd.http.description.schemas import COMMAND_ID
from boxd.http.requests.json_body import JsonForm
from boxd.http.routes.json_route import JsonRequest, json_route
from boxd.operations.agent_requests.commands import WHY, CommandRef

COMMAND = path("command", "The id of the command.", "00c0ffee00c0ffee", pattern=COMMAND_ID)
EXAMPLE: Json = {
    "id": "00c0ffee00c0ffee",
    "box": "0f3a41c2d5e6978811223344556677ff",
    "cmd": "make test",
    "state": "running",
    "exit_code": None,
    "signal": None,
    "pid": 42,
    "started": "2026-01-02T03:04:05+00:00",
    "ended": None,
    "output_bytes": 0,
    "dropped_bytes": 0,
    "stdin_open": False,
    "keep_awake": True,
    "timeout_s": None,
}
_RESUMES = " A suspended box resumes first."


class NewCommand(JsonForm):
    """The body of a request that starts a command."""

    cmd: str
    env: dict[str, str] = field(default_factory=dict)
    timeout_s: int | float | None = None
    stdin: bool = False
    keep_awake: bool = True


class NewSignal(JsonForm):
    """The body of a request that sends a signal."""

    signal: str


def location(box_id: str, command_id: str) -> str:
    """Return the path of a command."""
    return f"/v1/boxes/{box_id}/commands/{command_id}"


def _json_body(name: str, example: Json) -> Json:
    return {
        "required": True,
        "content": {JSON_TYPE: {"schema": ref(name), "example": example}},
    }


@json_route(
    "POST",
    "/v1/boxes/{ref}/commands",
    Operation(
        "startCommand",
        "Commands",
        "Start a background command",
        "Starts a command that belongs to the box: it continues after the client disconnects, while"
        " the service restarts and after the box has been suspended. It ends with the box. The box"
        " stores its output. At most 64 commands can run in a box; ended ones are forgotten when"
        " new ones start." + _RESUMES,
        {
            "201": answer("The command; `Location` is its path.", ref("Command"), EXAMPLE),
            **errors(404, 409, 413, 429, 504, 507),
        },
        (REF, WS),
        _json_body("NewCommand", {"cmd": "make test", "timeout_s": 3600}),
    ),
)
async def start(request: JsonRequest) -> Response:
    """Start a background command in an existing box."""
    caller = await request.caller()
    box, body = request.parameter("ref"), await request.form(NewCommand)
    checked = BackgroundRequest.checked(
        body.cmd, body.env, body.timeout_s, stdin=body.stdin, keep_awake=body.keep_awake
    )
    access = BoxAccess(box, kind="reference", why=WHY, ws=caller.ws)
    command = await caller.operations.commands.start_command(caller.principal, access, checked)
    headers = {"location": location(command.box, command.id)}
    return JSONResponse(command.to_json(), status_code=201, headers=headers)


@json_route(
    "GET",
    "/v1/boxes/{ref}/commands",
    Operation(
        "listCommands",
        "Commands",
        "List background commands",
        "Returns the background commands of the box in the order of their start, ended ones too."
        + _RESUMES,
        {
            "200": answer("The commands.", array("Command"), [EXAMPLE]),
            **errors(404, 409, 413, 429, 504, 507),
        },
        (REF, WS),
    ),
)
async def list_all(request: JsonRequest) -> Response:
    """Return the background commands of a box."""
    caller = await request.caller()
    box = request.parameter("ref")
    commands = await caller.operations.commands.list_commands(caller.principal, box, caller.ws)
    return JSONResponse([command.to_json() for command in commands])


@json_route(
    "GET",
    "/v1/boxes/{ref}/commands/{command}",
    Operation(
        "getCommand",
        "Commands",
        "Show a background command",
        "Returns one background command of the box." + _RESUMES,
        {
            "200": answer("The command.", ref("Command"), EXAMPLE),
            **errors(404, 409, 413, 429, 504, 507),
        },
        (REF, COMMAND, WS),
    ),
)
async def show(request: JsonRequest) -> Response:
    """Return one background command."""
    caller = await request.caller()
    command_ref = _command(request, caller.ws)
    command = await caller.operations.commands.show_command(caller.principal, command_ref)
    return JSONResponse(command.to_json())


@json_route(
    "POST",
    "/v1/boxes/{ref}/commands/{command}/signal",
    Operation(
        "signalCommand",
        "Commands",
        "Send a signal to a background command",
        "Sends the signal to the process group of the command. Returns 409 if it has ended."
        + _RESUMES,
        {
            "200": answer("The command.", ref("Command"), EXAMPLE),
            **errors(404, 409, 413, 429, 504, 507),
        },
        (REF, COMMAND, WS),
        _json_body("Signal", {"signal": "TERM"}),
    ),
)
async def send_signal(request: JsonRequest) -> Response:
    """Send a signal to a background command."""
    caller = await request.caller()
    command_ref, body = _command(request, caller.ws), await request.form(NewSignal)
    command = await caller.operations.commands.signal_command(
        caller.principal, command_ref, body.signal
    )
    return JSONResponse(command.to_json())


@json_route(
    "DELETE",
    "/v1/boxes/{ref}/commands/{command}",
    Operation(
        "removeCommand",
        "Commands",
        "Remove a background command",
        "Ends the command if it runs, with TERM and after 5 s with KILL, and forgets it and its"
        " output." + _RESUMES,
        {"204": answer("The command is removed."), **errors(404, 409, 413, 429, 504, 507)},
        (REF, COMMAND, WS),
    ),
)
async def remove(request: JsonRequest) -> Response:
    """End a background command and forget it."""
    caller = await request.caller()
    command_ref = _command(request, caller.ws)
    await caller.operations.commands.remove_command(caller.principal, command_ref)
    return Response(status_code=204)


def _command(request: JsonRequest, ws: str | None) -> CommandRef:
    return CommandRef(request.parameter("ref"), request.parameter("command"), ws)


ROUTES = (start, list_all, show, send_signal, remove)
