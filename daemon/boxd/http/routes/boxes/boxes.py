"""Protocol adapter only. `/v1/boxes`: list, create, show and remove boxes."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta
from starlette.responses import JSONResponse, Response

from boxd.errors import BadRequest, Pinned
from boxd.http.description.bodies import body_of
from boxd.http.description.boxes import BOX, MADE_BOX, REF
from boxd.http.description.operation import (
    WS,
    Operation,
    answer,
    array,
    errors,
    ref,
    switch,
)
from boxd.http.requests.json_body import JsonForm
from boxd.http.routes.json_route import JsonRequest, json_route
from boxd.model.box import Box, BoxState
from boxd.model.progress import Progress


class NewBox(JsonForm, kw_only=True):
    """The body of `createBox`: a spec, or a name and the parts of a spec."""

    spec: Annotated[
        str | None,
        Meta(
            description="The whole spec,"
            " `[workspace/]name[+][!][:image|profile[:flavor]][^deadline][+lifetime]`."
        ),
    ] = None
    name: Annotated[
        str | None, Meta(description="The name, instead of a spec: `name` or `workspace/name`.")
    ] = None
    image: Annotated[
        str | None, Meta(description="The image or profile. Default: that of the workspace.")
    ] = None
    flavor: Annotated[str | None, Meta(description="The resource limits; needs an image.")] = None
    deadline: Annotated[
        str | None,
        Meta(description="Time from the creation to the removal of the box, such as `2h`."),
    ] = None
    lifetime: Annotated[
        str | None,
        Meta(description="Time that the box stays awake after its last use, such as `5m`."),
    ] = None
    fresh: Annotated[
        bool, Meta(description="`true` removes a box of this name first, and creates a new one.")
    ] = False
    durable: Annotated[
        bool | None, Meta(description="`true`: the service removes the box only at its deadline.")
    ] = None
    wait: Annotated[
        bool, Meta(description="`false` returns before the box runs; its state is `creating`.")
    ] = True

    def text(self) -> str:
        """Return the spec of the box. Raises BadRequest if the fields contradict each other."""
        parts = (self.name, self.image, self.flavor, self.deadline, self.lifetime)
        if self.spec is not None:
            if any(part is not None for part in parts) or self.fresh:
                raise BadRequest("give a spec, or a name and its options, but not both")
            return self.spec
        if self.name is None:
            raise BadRequest('the box needs a spec or a name; for example {"name": "web"}')
        if self.flavor is not None and self.image is None:
            raise BadRequest('a flavor needs an image; for example "image": "debian"')
        marks = (("+" if self.fresh else ""), *_marked(":", self.image, self.flavor))
        marks += (*_marked("^", self.deadline), *_marked("+", self.lifetime))
        return self.name + "".join(marks)


def _marked(mark: str, *parts: str | None) -> tuple[str, ...]:
    """Return the parts that are given, each behind its mark in a spec."""
    return tuple(mark + part for part in parts if part is not None)


@json_route(
    "GET",
    "/v1/boxes",
    Operation(
        "listBoxes",
        "Boxes",
        "List boxes",
        "Returns all boxes that the key can reach; with `ws`, only those of that workspace.",
        {"200": answer("The boxes.", array("Box"), [BOX]), **errors(404)},
        (WS,),
    ),
)
async def list_boxes(request: JsonRequest) -> Response:
    """Return the caller's boxes; with `?ws=`, only those of that workspace."""
    caller = await request.caller()
    views = await caller.operations.boxes.list_boxes(
        caller.principal, caller.ws, everywhere=caller.ws is None
    )
    return JSONResponse([view.to_json() for view in views])


@json_route(
    "POST",
    "/v1/boxes",
    Operation(
        "createBox",
        "Boxes",
        "Create a box",
        "Creates and starts the box, or resumes a box of this name. `notes` are remarks for people,"
        " for example that a deadline was shortened.",
        {
            "200": answer("The box existed, and is running.", ref("MadeBox"), MADE_BOX),
            "201": answer("The box is created.", ref("MadeBox"), MADE_BOX),
            **errors(404, 409, 413, 415, 429, 504, 507),
        },
        (WS,),
        body_of(NewBox, spec="web:debian^2h"),
    ),
)
async def create(request: JsonRequest) -> Response:
    """Create the box of a spec, or resume it; 201 if this call created it."""
    caller, form = await request.caller(), await request.form(NewBox)
    created, notes = False, list[str]()

    def set_created(box: Box) -> None:
        nonlocal created
        created = box.state is BoxState.CREATING

    view = await caller.operations.boxes.up(
        caller.principal,
        form.text(),
        caller.ws,
        durable=form.durable,
        wait=form.wait,
        progress=Progress(notes.append, set_created),
    )
    document = view.to_json() | {"notes": notes}
    return JSONResponse(document, 201 if created else 200)


@json_route(
    "GET",
    "/v1/boxes/{ref}",
    Operation(
        "showBox",
        "Boxes",
        "Show a box",
        "Returns one box, with the resources that it uses now.",
        {"200": answer("The box.", ref("Box"), BOX), **errors(404, 409)},
        (REF, WS),
    ),
)
async def show(request: JsonRequest) -> Response:
    """Return the box that the reference names, with its current use of resources."""
    caller = await request.caller()
    ref = request.parameter("ref")
    view = await caller.operations.boxes.inspect(caller.principal, ref, caller.ws)
    return JSONResponse(view.to_json())


@json_route(
    "DELETE",
    "/v1/boxes/{ref}",
    Operation(
        "removeBox",
        "Boxes",
        "Remove a box",
        "Destroys the box with everything in it, even while it is in use. /wrk is not changed."
        " Returns 409 while the box is pinned, unless `force=true`.",
        {"204": answer("The box is removed."), **errors(404, 409)},
        (
            REF,
            WS,
            switch("force", "`true` removes the box even while it is pinned."),
        ),
    ),
)
async def remove(request: JsonRequest) -> Response:
    """Destroy the box that the reference names; a pinned box only with `?force=true`."""
    caller = await request.caller()
    ref, force = request.parameter("ref"), request.flag("force")
    try:
        await caller.operations.boxes.remove(caller.principal, ref, caller.ws, force=force)
    except Pinned as error:
        remedy = "Add ?force=true to remove it, or unpin it first"
        raise Pinned(error.fact, remedy) from None
    return Response(status_code=204)


ROUTES = (list_boxes, create, show, remove)
