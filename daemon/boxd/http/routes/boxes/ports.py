"""Protocol adapter only. `GET /v1/boxes/{ref}/ports`: the ports of a box."""

from __future__ import annotations

from starlette.responses import JSONResponse, Response

from boxd.http.description.boxes import BOX, REF
from boxd.http.description.operation import WS, Operation, answer, array, errors
from boxd.http.routes.json_route import JsonRequest, json_route
from boxd.names.preview import preview_url

_PORT = {
    "port": 3000,
    "address": "0.0.0.0",  # noqa: S104 - an example of a value, binds nothing
    "path": f"/v1/boxes/{BOX['id']}/proxy/3000/",
    "url": "https://0f3a41c2d5e6-3000.preview.example.net/",
}


@json_route(
    "GET",
    "/v1/boxes/{ref}/ports",
    Operation(
        "listPorts",
        "Ports",
        "List the ports of a box",
        "Returns the TCP ports on which programs in the box listen, with the addresses of their"
        " previews. Does not wake the box: returns 409 if it does not run.",
        {"200": answer("The ports.", array("Port"), [_PORT]), **errors(404, 409, 429, 504)},
        (REF, WS),
    ),
)
async def list_ports(request: JsonRequest) -> Response:
    """Return the ports on which programs in a box listen."""
    caller = await request.caller()
    ref, authority = request.parameter("ref"), request.services.preview_authority
    box, ports = await caller.operations.ports.list_ports(caller.principal, ref, caller.ws)
    return JSONResponse(
        [port.to_json(box.id, preview_url(box.id, port.port, authority)) for port in ports]
    )


ROUTES = (list_ports,)
