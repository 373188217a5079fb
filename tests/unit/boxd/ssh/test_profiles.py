"""The commands of profiles, `up`, and the display of a shortened deadline; with fakes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tests.harness.ssh.console import run

if TYPE_CHECKING:
    from tests.harness.simulation.world import World

SET = "profiles set py --image debian --flavor large --lifetime 5m --deadline 2h --egress none"


async def document(world: World, line: str) -> dict[str, Any]:
    """Return the document that `--json` prints."""
    result = await run(world, line + " --json")
    assert result.status == 0, result.stderr
    content = json.loads(result.stdout)
    assert isinstance(content, dict)
    return content


async def test_profile_commands(world: World) -> None:
    columns = "NAME  IMAGE   FLAVOR  LIFETIME  DEADLINE  EGRESS  DURABLE\n"
    row = "py    debian  large   5m        2h        none    no\n"
    assert (await run(world, SET)).stdout == columns + row
    await run(world, "profiles set bare --image debian --durable")
    bare = "bare  debian  -       -         -         -       yes\n"
    assert (await run(world, "profiles ls")).stdout == columns + bare + row
    assert "durable:  yes\n" in (await run(world, "profiles show bare")).stdout
    assert "lifetime: 5m\n" in (await run(world, "profiles show py")).stdout
    expected = {"name": "py", "image": "debian", "flavor": "large", "lifetime_s": 300.0}
    expected |= {"deadline_s": 7200.0, "egress": "none", "durable": False, "built_from": None}
    assert await document(world, "profiles show py") == expected
    assert json.loads((await run(world, "profiles ls --json")).stdout)[1] == expected
    assert (await document(world, "profiles show bare"))["durable"] is True
    assert (await run(world, "profiles rm py")).stdout == "removed py\n"
    result = await run(world, "profiles rm py")
    assert (result.status, result.stderr) == (1, "no profile 'py'; see: profiles ls\n")


async def test_profiles_build_copies_the_disk_of_a_box(sleepy: World) -> None:
    await run(sleepy, "up web")
    row = (await run(sleepy, "profiles build lab --from web --deadline 2h")).stdout
    assert row.endswith("\nlab   debian  -       -         2h        -       no\n")
    assert (await run(sleepy, "profiles ls")).stdout == row
    assert "built from: web@s1\n" in (await run(sleepy, "profiles show lab")).stdout
    assert (await document(sleepy, "profiles show lab"))["built_from"] == "web@s1"
    result = await run(sleepy, "profiles build lab --from nothing")
    assert (result.status, result.stderr) == (1, "no box 'nothing'; see: ls\n")


async def test_invalid_command_lines_are_rejected(world: World) -> None:
    for line, message in (
        ("profiles", "profiles needs one of: profiles set, profiles build"),
        ("profiles set py", "required: --image"),
        ("profiles build py", "required: --from"),
        ("profiles set py --image debian --lifetime soon", "lifetime 'soon' is not valid"),
        ("profiles set py --image debian --deadline 0s", "deadline '0s' must be positive"),
    ):
        result = await run(world, line)
        assert (result.status, message in result.stderr) == (2, True), result.stderr


async def test_a_shortened_deadline_has_a_note_and_a_mark(world: World) -> None:
    result = await run(world, "up --durable 'web^400d'")
    assert result.stderr == "deadline ^400d shortened: the maximum for box web is ^365d\n"
    assert "2027-01-02T03:04:05Z (max)" in result.stdout
    assert "2027-01-02T03:04:05Z (max)" in (await run(world, "ls")).stdout
    assert "2027-01-02T03:04:05Z (max)" in (await run(world, "info web")).stdout
    box = await document(world, "up --no-durable web")
    assert (box["durable"], box["clamped"]) == (False, True)
    assert "(max)" not in (await run(world, "up 'db^1h'")).stdout
    help_page = (await run(world, "help up")).stdout
    assert "--durable | --no-durable" in help_page
