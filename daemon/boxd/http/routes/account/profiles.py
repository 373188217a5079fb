"""Protocol adapter only. `/v1/profiles`: images with default settings, under a name."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from msgspec import Meta, field
from starlette.responses import JSONResponse, Response

from boxd.http.description.bodies import body_of
from boxd.http.description.operation import (
    NAME,
    Json,
    Operation,
    answer,
    array,
    errors,
    path,
    ref,
)
from boxd.http.requests.json_body import JsonForm
from boxd.http.routes.json_route import JsonRequest, json_route
from boxd.model.profile import ProfileDefaults
from boxd.model.progress import Progress
from boxd.names.duration import MAX_DURATION

MAX_S = round(MAX_DURATION.total_seconds())
_NAME = path("name", "The name of the profile.", "py", pattern=NAME)
_PROFILE: Json = {
    "name": "py",
    "image": "python",
    "flavor": "large",
    "lifetime_s": 300.0,
    "deadline_s": 7200.0,
    "egress": "none",
    "durable": False,
    "built_from": None,
}
_Seconds = Annotated[int, Meta(ge=1, le=MAX_S)] | None


class Defaults(JsonForm, kw_only=True):
    """The default settings of a profile. Null: no default."""

    flavor: Annotated[str | None, Meta(description="The resource limits.")] = None
    lifetime_s: Annotated[
        _Seconds, Meta(description="Seconds that a box stays awake after its last use.")
    ] = None
    deadline_s: Annotated[
        _Seconds, Meta(description="Seconds from the creation of a box to its removal.")
    ] = None
    egress: Annotated[
        str | None, Meta(description="`all`, `none`, or a list of names and networks.")
    ] = None
    durable: Annotated[
        bool, Meta(description="The service removes a box only at its deadline.")
    ] = False

    def defaults(self) -> ProfileDefaults:
        """Return the settings as the service stores them."""
        return ProfileDefaults(
            flavor=self.flavor,
            ttl=_span(self.deadline_s),
            grace=_span(self.lifetime_s),
            egress=self.egress,
            durable=self.durable,
        )


class NewProfile(Defaults, kw_only=True):
    """The body of `setProfile`."""

    image: Annotated[str, Meta(description="The image of new boxes.")]


class NewBuild(Defaults, kw_only=True):
    """The body of `buildProfile`."""

    base: Annotated[str, Meta(description="The box whose disk new boxes start with.")] = field(
        name="from"
    )


def _span(seconds: int | None) -> timedelta | None:
    return None if seconds is None else timedelta(seconds=seconds)


@json_route(
    "GET",
    "/v1/profiles",
    Operation(
        "listProfiles",
        "Account",
        "List profiles",
        "Returns the profiles. The spec of a box can name one in place of an image.",
        {"200": answer("The profiles.", array("Profile"), [_PROFILE]), **errors()},
    ),
)
async def list_profiles(request: JsonRequest) -> Response:
    """Return the profiles of the caller's owner."""
    caller = await request.caller()
    profiles = await caller.operations.profiles.list_profiles(caller.principal)
    return JSONResponse([profile.to_json() for profile in profiles])


@json_route(
    "GET",
    "/v1/profiles/{name}",
    Operation(
        "showProfile",
        "Account",
        "Show a profile",
        "Returns one profile.",
        {"200": answer("The profile.", ref("Profile"), _PROFILE), **errors(404)},
        (_NAME,),
    ),
)
async def show_profile(request: JsonRequest) -> Response:
    """Return one profile."""
    caller = await request.caller()
    name = request.parameter("name")
    profile = await caller.operations.profiles.show_profile(caller.principal, name)
    return JSONResponse(profile.to_json())


@json_route(
    "PUT",
    "/v1/profiles/{name}",
    Operation(
        "setProfile",
        "Account",
        "Set a profile",
        "Creates the profile, or replaces the profile of this name. Existing boxes do not change.",
        {
            "200": answer("The profile.", ref("Profile"), _PROFILE),
            **errors(409, 413, 415, 429),
        },
        (_NAME,),
        body_of(NewProfile, image="python", flavor="large", lifetime_s=300),
    ),
)
async def set_profile(request: JsonRequest) -> Response:
    """Record a profile, and return it."""
    caller, form = await request.caller(), await request.form(NewProfile)
    profile = await caller.operations.profiles.set_profile(
        caller.principal, request.parameter("name"), form.image, form.defaults()
    )
    return JSONResponse(profile.to_json())


@json_route(
    "POST",
    "/v1/profiles/{name}/build",
    Operation(
        "buildProfile",
        "Account",
        "Build a profile from a box",
        "Saves the disk of a box; new boxes of the profile start with this disk.",
        {
            "201": answer("The profile.", ref("Profile"), {**_PROFILE, "built_from": "web@1"}),
            **errors(404, 409, 413, 415, 429, 507),
        },
        (_NAME,),
        body_of(NewBuild, **{"from": "web", "lifetime_s": 300}),
    ),
)
async def build_profile(request: JsonRequest) -> Response:
    """Build a profile from the disk of a box, and return it."""
    caller, form = await request.caller(), await request.form(NewBuild)
    profile = await caller.operations.builds.build_profile(
        caller.principal, request.parameter("name"), form.base, form.defaults(), Progress()
    )
    return JSONResponse(profile.to_json(), 201)


@json_route(
    "DELETE",
    "/v1/profiles/{name}",
    Operation(
        "removeProfile",
        "Account",
        "Remove a profile",
        "Removes the profile. Its boxes stay.",
        {"204": answer("The profile is removed."), **errors(404, 409)},
        (_NAME,),
    ),
)
async def remove_profile(request: JsonRequest) -> Response:
    """Remove a profile."""
    caller = await request.caller()
    await caller.operations.profiles.remove_profile(caller.principal, request.parameter("name"))
    return Response(status_code=204)


ROUTES = (
    list_profiles,
    show_profile,
    set_profile,
    build_profile,
    remove_profile,
)
