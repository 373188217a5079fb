"""`profile_*`: images with default settings, under a name."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from boxd.mcp.tools.params import Param
from boxd.mcp.tools.shapes import BOOLEAN, NULLABLE_STRING, STRING, list_of
from boxd.mcp.tools.tool import Call, Tool
from boxd.model.profile import ProfileDefaults
from boxd.names.duration import MAX_DURATION

_NAME = Param("name", "string", "the name of the profile", required=True)
_MAX_S = round(MAX_DURATION.total_seconds())
_NULLABLE_NUMBER = {"type": ["number", "null"]}
_PROFILE = {
    "name": STRING,
    "image": STRING,
    "flavor": NULLABLE_STRING,
    "lifetime_s": _NULLABLE_NUMBER,
    "deadline_s": _NULLABLE_NUMBER,
    "egress": NULLABLE_STRING,
    "durable": BOOLEAN,
    "built_from": NULLABLE_STRING,
}
_DEFAULTS = (
    Param("flavor", "string", "the resource limits of new boxes"),
    Param(
        "lifetime_s",
        "integer",
        "seconds that a box stays awake after its last use",
        minimum=1,
        maximum=_MAX_S,
    ),
    Param(
        "deadline_s",
        "integer",
        "seconds from the creation of a box to its removal",
        minimum=1,
        maximum=_MAX_S,
    ),
    Param("egress", "string", "all, none, or a list of names and networks"),
    Param("durable", "boolean", "the service removes boxes only at their deadline", default=False),
)


def _defaults(call: Call) -> ProfileDefaults:
    return ProfileDefaults(
        flavor=call.args["flavor"],
        ttl=_span(call.args["deadline_s"]),
        grace=_span(call.args["lifetime_s"]),
        egress=call.args["egress"],
        durable=call.args["durable"],
    )


def _span(seconds: int | None) -> timedelta | None:
    return None if seconds is None else timedelta(seconds=seconds)


async def _list(call: Call) -> dict[str, Any]:
    profiles = await call.operations.profiles.list_profiles(call.principal)
    return {"profiles": [profile.to_json() for profile in profiles]}


async def _show(call: Call) -> dict[str, Any]:
    profile = await call.operations.profiles.show_profile(call.principal, call.args["name"])
    return profile.to_json()


async def _set(call: Call) -> dict[str, Any]:
    profile = await call.operations.profiles.set_profile(
        call.principal, call.args["name"], call.args["image"], _defaults(call), call.progress()
    )
    return profile.to_json()


async def _build(call: Call) -> dict[str, Any]:
    profile = await call.operations.builds.build_profile(
        call.principal, call.args["name"], call.args["box"], _defaults(call), call.progress()
    )
    return profile.to_json()


async def _remove(call: Call) -> dict[str, Any]:
    profile = await call.operations.profiles.remove_profile(call.principal, call.args["name"])
    return {"removed": profile.name}


TOOLS = (
    Tool(
        "profile_list",
        "List profiles",
        "List the profiles. The spec of a box can name one in place of an image.",
        _list,
        result={"profiles": list_of(_PROFILE)},
        read_only=True,
    ),
    Tool(
        "profile_show",
        "Show a profile",
        "Show one profile.",
        _show,
        (_NAME,),
        _PROFILE,
        read_only=True,
    ),
    Tool(
        "profile_set",
        "Set a profile",
        "Create a profile, or replace the profile of this name. Existing boxes do not change.",
        _set,
        (_NAME, Param("image", "string", "the image of new boxes", required=True), *_DEFAULTS),
        _PROFILE,
        destructive=True,
        idempotent=True,
    ),
    Tool(
        "profile_build",
        "Build a profile from a box",
        "Save the disk of a box. New boxes of the profile start with this disk.",
        _build,
        (
            _NAME,
            Param("box", "string", "the box whose disk new boxes start with", required=True),
            *_DEFAULTS,
        ),
        _PROFILE,
        destructive=True,
    ),
    Tool(
        "profile_rm",
        "Remove a profile",
        "Remove a profile. Its boxes stay.",
        _remove,
        (_NAME,),
        {"removed": STRING},
        destructive=True,
    ),
)
