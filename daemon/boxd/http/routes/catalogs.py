"""Protocol adapter only. `GET /v1/images` and `GET /v1/flavors`."""

from __future__ import annotations

from dataclasses import asdict

from starlette.responses import JSONResponse, Response

from boxd.http.description.operation import Operation, answer, array, errors
from boxd.http.routes.json_route import JsonRequest, json_route

_IMAGE = {"name": "debian", "description": "Debian 12", "built": True}
_FLAVOR = {"name": "small", "description": "1 CPU", "cpus": 1.0, "mem_mb": 512}


@json_route(
    "GET",
    "/v1/images",
    Operation(
        "listImages",
        "Catalogs",
        "List images",
        "Returns the images that a box can start from.",
        {"200": answer("The images.", array("Image"), [_IMAGE]), **errors()},
    ),
)
async def images(request: JsonRequest) -> Response:
    """Return all images: name, description, and whether the image is built on this host."""
    caller = await request.caller()
    return JSONResponse([asdict(image) for image in caller.operations.catalog.images()])


@json_route(
    "GET",
    "/v1/flavors",
    Operation(
        "listFlavors",
        "Catalogs",
        "List flavors",
        "Returns the flavors: sets of resource limits that a box can be created with.",
        {"200": answer("The flavors.", array("Flavor"), [_FLAVOR]), **errors()},
    ),
)
async def flavors(request: JsonRequest) -> Response:
    """Return all flavors: name, description, CPUs, and memory in MiB."""
    caller = await request.caller()
    return JSONResponse(
        [
            {
                "name": flavor.name,
                "description": flavor.description,
                "cpus": flavor.cpus,
                "mem_mb": flavor.mem_mb,
            }
            for flavor in caller.operations.catalog.flavors()
        ]
    )


ROUTES = (images, flavors)
