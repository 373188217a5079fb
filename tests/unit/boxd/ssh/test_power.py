"""The commands for the life of boxes, on fakes: suspend, resume, pin, unpin."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from boxd.boxes.state.requests import BoxAccess
from boxd.model.box import BoxState
from boxd.model.profile import Profile, ProfileDefaults
from boxd.principal import Principal
from tests.harness.console import run
from tests.harness.world import ALICE, BOB, SCOPED

if TYPE_CHECKING:
    from tests.harness.world import World
    from tests.plugins.strict_logs import AssertLogs

RUNNING, SUSPENDING = BoxState.RUNNING, BoxState.SUSPENDING


async def document(world: World, line: str) -> dict[str, Any]:
    """What `--json` prints."""
    result = await run(world, line + " --json")
    assert result.status == 0
    shown = json.loads(result.stdout)
    assert isinstance(shown, dict)
    return shown


async def test_suspend_and_resume(sleepy: World) -> None:
    await sleepy.operations.boxes.up(ALICE, "web")
    assert (await run(sleepy, "suspend web")).stdout == "NAME  STATE\nweb   suspended\n"
    shown = await document(sleepy, "suspend web")
    assert (shown["state"], shown["memory"]) == ("suspended", True)
    result = await run(sleepy, "resume web")
    assert (result.stdout, result.stderr) == ("NAME  STATE\nweb   running\n", "")
    assert (await document(sleepy, "resume web"))["memory"] is False


async def test_a_start_from_disk_is_told(sleepy: World, assert_logs: AssertLogs) -> None:
    box = await sleepy.operations.boxes.up(ALICE, "web")
    await run(sleepy, "suspend web")
    sleepy.backend.lost.add(box.id)
    with assert_logs("starts from its disk"):
        result = await run(sleepy, "resume web")
    assert result.status == 0
    assert result.stderr == ("box web started from its disk: its memory cannot be brought back\n")


async def test_a_host_that_cannot_suspend_says_why(world: World) -> None:
    await world.operations.boxes.up(ALICE, "web")
    for command in ("suspend web", "resume web"):
        result = await run(world, command)
        assert result.status == 1
        assert "cannot suspend boxes: this backend cannot suspend boxes" in result.stderr


async def test_a_box_in_use_stays_awake(sleepy: World) -> None:
    async with sleepy.operations.boxes.attach(ALICE, BoxAccess("web", kind="spec", why="shell")):
        result = await run(sleepy, "suspend web")
        assert (result.status, result.stdout) == (1, "")
        assert "box web is in use (1 shell)" in result.stderr


async def test_up_does_not_wait_when_told_so(sleepy: World) -> None:
    shown = await document(sleepy, "up --no-wait web")
    assert shown["state"] == "creating"
    await sleepy.quiet()
    assert (await document(sleepy, "info web"))["state"] == "running"
    assert "[--no-wait]" in (await run(sleepy, "help up")).stdout


async def test_info_shows_a_box_in_full(sleepy: World) -> None:
    await sleepy.store.put_profile(
        ALICE.owner, Profile("tight", "debian", ProfileDefaults(egress="example.org"))
    )
    await run(sleepy, "up --durable web:tight+10m")
    await run(sleepy, "pin web --for 8h --why training")
    told = (await run(sleepy, "info web")).stdout.splitlines()
    pairs = dict(line.split(":", 1) for line in told)
    shown = {key: value.strip() for key, value in pairs.items()}
    assert shown["egress"] == "example.org"
    assert shown["pinned until"] == "2026-01-02T11:04:05Z (training)"
    assert [shown[key] for key in ("grace", "durable", "auto-suspend")] == ["10m", "yes", "on"]
    assert [shown[key] for key in ("memory", "memory kept", "drive")] == ["512 MiB", "no", "yes"]
    box = await sleepy.operations.directory.resolve(ALICE, "web")
    assert shown["disk limit"] == f"{box.disk_mb} MiB"
    assert shown["process limit"] == str(box.pids)
    wide = await document(sleepy, "info web")
    assert {key: wide[key] for key in ("egress", "disk_mb", "pids", "drive")} == {
        "egress": "example.org",
        "disk_mb": box.disk_mb,
        "pids": box.pids,
        "drive": True,
    }


async def test_notes_are_lines_and_documents_with_json(sleepy: World) -> None:
    box = await sleepy.operations.boxes.up(ALICE, "web")
    for before, after in ((RUNNING, SUSPENDING), (SUSPENDING, RUNNING)):
        await sleepy.store.change_state(box.id, before, after, "a\x1b[2Jb\nc")
    assert (await run(sleepy, "resume web")).stderr == "box web a\\x1b[2Jb\\nc\n"
    result = await run(sleepy, "up 'web+^400d' --json")
    assert json.loads(result.stdout)["state"] == "running"
    removed, shortened = [json.loads(line)["note"] for line in result.stderr.splitlines()]
    assert removed == f"removed the old box web ({box.id[:12]})"
    assert "deadline ^400d shortened" in shortened


async def test_pin_and_unpin(sleepy: World) -> None:
    await sleepy.operations.boxes.up(ALICE, "web")
    until = (sleepy.clock.now() + timedelta(hours=8)).strftime("%Y-%m-%dT%H:%M:%SZ")
    result = await run(sleepy, "pin web --for 8h --why 'a build'")
    assert result.stdout == f"NAME  PINNED UNTIL          WHY\nweb   {until}  a build\n"
    shown = await document(sleepy, "pin web")
    assert shown["pinned_until"] == (sleepy.clock.now() + timedelta(hours=2)).isoformat()
    assert shown["next"] == {"act": "suspended", "at": shown["pinned_until"]}
    assert (await run(sleepy, "unpin web")).stdout.splitlines()[1].split() == ["web", "-", "-"]
    for line in ("pin web --for 8d", "pin web --for soon"):
        result = await run(sleepy, line)
        assert result.status in (1, 2)
        assert result.stderr


@pytest.mark.parametrize("line", ["suspend web", "resume web", "pin web", "unpin web"])
@pytest.mark.parametrize(
    "stranger", [BOB, SCOPED, Principal(ALICE.owner, None, "share"), Principal("x", None, "cookie")]
)
async def test_only_owners_in_scope_may(sleepy: World, line: str, stranger: Principal) -> None:
    box = await sleepy.operations.boxes.up(ALICE, "web")
    result = await run(sleepy, line, stranger)
    assert (result.status, result.stdout) == (1, "")
    assert (await sleepy.operations.boxes.list_boxes(ALICE))[0].state == "running"
    assert box.pinned_until is None
