"""`profiles`: names for images with defaults; a box spec accepts them in place of an image."""

from __future__ import annotations

from typing import TYPE_CHECKING

from boxd.model.profile import ProfileDefaults
from boxd.model.progress import Progress
from boxd.names.duration import format_duration, parse_duration
from boxd.ssh.cli.command import Call, Command, Reply
from boxd.ssh.cli.table import key_value_lines, table

if TYPE_CHECKING:
    import argparse
    from datetime import timedelta

    from boxd.model.profile import Profile

_COLUMNS = ("NAME", "IMAGE", "FLAVOR", "LIFETIME", "DEADLINE", "EGRESS", "DURABLE")


def _set_arguments(parser: argparse.ArgumentParser) -> None:
    _name_argument(parser)
    parser.add_argument("--image", required=True)
    _default_arguments(parser)


def _build_arguments(parser: argparse.ArgumentParser) -> None:
    _name_argument(parser)
    parser.add_argument("--from", dest="base", required=True, metavar="REF")
    _default_arguments(parser)


def _default_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--flavor")
    parser.add_argument("--lifetime", metavar="DURATION")
    parser.add_argument("--deadline", metavar="DURATION")
    parser.add_argument("--egress", metavar="all|none|LIST")
    parser.add_argument("--durable", action="store_true")


def _name_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name")


async def _set(call: Call) -> Reply:
    args = call.args
    notes: list[str] = []
    profile = await call.operations.profiles.set_profile(
        call.principal, args.name, args.image, _defaults(args), Progress(notes.append)
    )
    return Reply(profile.to_json(), table(_COLUMNS, [_row(profile)]), notes)


async def _build(call: Call) -> Reply:
    args = call.args
    notes: list[str] = []
    profile = await call.operations.builds.build_profile(
        call.principal, args.name, args.base, _defaults(args), Progress(notes.append)
    )
    return Reply(profile.to_json(), table(_COLUMNS, [_row(profile)]), notes)


def _defaults(args: argparse.Namespace) -> ProfileDefaults:
    return ProfileDefaults(
        flavor=args.flavor,
        ttl=_span(args.deadline, "deadline"),
        grace=_span(args.lifetime, "lifetime"),
        egress=args.egress,
        durable=args.durable,
    )


async def _list(call: Call) -> Reply:
    profiles = await call.operations.profiles.list_profiles(call.principal)
    return Reply(
        [profile.to_json() for profile in profiles],
        table(_COLUMNS, [_row(profile) for profile in profiles]),
    )


async def _show(call: Call) -> Reply:
    profile = await call.operations.profiles.show_profile(call.principal, call.args.name)
    keys = (column.lower() for column in _COLUMNS)
    rows = list(zip(keys, _row(profile), strict=True))
    if profile.built_from is not None:
        rows.append(("built from", profile.built_from))
    return Reply(profile.to_json(), key_value_lines(rows))


async def _remove(call: Call) -> Reply:
    profile = await call.operations.profiles.remove_profile(call.principal, call.args.name)
    return Reply({"removed": profile.name}, f"removed {profile.name}\n")


def _row(profile: Profile) -> tuple[object, ...]:
    defaults = profile.defaults
    return (
        profile.name,
        profile.image,
        defaults.flavor,
        None if defaults.grace is None else format_duration(defaults.grace),
        None if defaults.ttl is None else format_duration(defaults.ttl),
        defaults.egress,
        "yes" if defaults.durable else "no",
    )


def _span(text: str | None, what: str) -> timedelta | None:
    return None if text is None else parse_duration(text, what)


COMMANDS = (
    Command(
        ("profiles", "set"),
        "name an image with defaults: lifetime after the last use, deadline, egress, durability",
        "profiles set py --image python --flavor large --lifetime 5m --deadline 2h --egress none",
        _set,
        _set_arguments,
    ),
    Command(
        ("profiles", "build"),
        "store a copy of a box's disk; boxes of the profile start with that disk",
        "profiles build lab --from web --lifetime 5m",
        _build,
        _build_arguments,
    ),
    Command(
        ("profiles", "ls"), "list your profiles; ssh NAME:PROFILE uses one", "profiles ls", _list
    ),
    Command(("profiles", "show"), "show a profile", "profiles show py", _show, _name_argument),
    Command(
        ("profiles", "rm"),
        "remove a profile; its boxes stay",
        "profiles rm py",
        _remove,
        _name_argument,
    ),
)
