"""The commands suspend, resume, pin, unpin and info, with fakes."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from boxd.boxes.state.requests import BoxAccess
from boxd.model.box import BoxState
from boxd.model.profile import Profile, ProfileDefaults
from boxd.principal import Principal
from tests.harness.simulation.world import ALICE, BOB, SCOPED
from tests.harness.ssh.console import run

if TYPE_CHECKING:
    from tests.harness.simulation.world import World
    from tests.plugins.strict_logs import AssertLogs

RUNNING, SUSPENDING = BoxState.RUNNING, BoxState.SUSPENDING


async def document(world: World, line: str) -> dict[str, Any]:
    """Return the document that `--json` prints."""
    result = await run(world, line + " --json")
    assert result.status == 0
    content = json.loads(result.stdout)
    assert isinstance(content, dict)
    return content


async def test_suspend_and_resume(sleepy: World) -> None:
    await sleepy.operations.boxes.up(ALICE, "web")
    assert (await run(sleepy, "suspend web")).stdout == "NAME  STATE\nweb   suspended\n"
    box = await document(sleepy, "suspend web")
    assert (box["state"], box["memory"]) == ("suspended", True)
    result = await run(sleepy, "resume web")
    assert (result.stdout, result.stderr) == ("NAME  STATE\nweb   running\n", "")
    assert (await document(sleepy, "resume web"))["memory"] is False


async def test_a_start_from_disk_has_a_note(sleepy: World, assert_logs: AssertLogs) -> None:
    box = await sleepy.operations.boxes.up(ALICE, "web")
    await run(sleepy, "suspend web")
    sleepy.backend.lost.add(box.id)
    with assert_logs("starts from its disk"):
        result = await run(sleepy, "resume web")
    assert result.status == 0
    assert result.stderr == "box web started from its disk: its memory cannot be brought back\n"


async def test_a_host_without_suspend_gives_the_reason(world: World) -> None:
    await world.operations.boxes.up(ALICE, "web")
    for command in ("suspend web", "resume web"):
        result = await run(world, command)
        assert result.status == 1
        assert "cannot suspend boxes: this backend cannot suspend boxes" in result.stderr


async def test_a_box_in_use_is_not_suspended(sleepy: World) -> None:
    async with sleepy.operations.boxes.attach(ALICE, BoxAccess("web", kind="spec", why="shell")):
        result = await run(sleepy, "suspend web")
        assert (result.status, result.stdout) == (1, "")
        assert "box web is in use (1 shell)" in result.stderr


async def test_up_with_no_wait_returns_at_once(sleepy: World) -> None:
    box = await document(sleepy, "up --no-wait web")
    assert box["state"] == "creating"
    await sleepy.quiet()
    assert (await document(sleepy, "info web"))["state"] == "running"
    assert "[--no-wait]" in (await run(sleepy, "help up")).stdout


async def test_info_shows_all_details_of_a_box(sleepy: World) -> None:
    await sleepy.store.put_profile(
        ALICE.owner, Profile("tight", "debian", ProfileDefaults(egress="example.org"))
    )
    await run(sleepy, "up --durable web:tight+10m")
    await run(sleepy, "pin web --for 8h --why training")
    lines = (await run(sleepy, "info web")).stdout.splitlines()
    pairs = dict(line.split(":", 1) for line in lines)
    details = {key: value.strip() for key, value in pairs.items()}
    assert details["egress"] == "example.org"
    assert details["pinned until"] == "2026-01-02T11:04:05Z (training)"
    assert [details[key] for key in ("grace", "durable", "auto-suspend")] == ["10m", "yes", "on"]
    assert [details[key] for key in ("memory", "memory kept", "drive")] == ["512 MiB", "no", "yes"]
    box = await sleepy.operations.directory.resolve(ALICE, "web")
    assert details["disk limit"] == f"{box.disk_mb} MiB"
    assert details["process limit"] == str(box.pids)
    view = await document(sleepy, "info web")
    assert {key: view[key] for key in ("egress", "disk_mb", "pids", "drive")} == {
        "egress": "example.org",
        "disk_mb": box.disk_mb,
        "pids": box.pids,
        "drive": True,
    }


async def test_notes_are_lines_or_documents(sleepy: World) -> None:
    box = await sleepy.operations.boxes.up(ALICE, "web")
    for before, after in ((RUNNING, SUSPENDING), (SUSPENDING, RUNNING)):
        await sleepy.store.change_state(box.id, before, after, "a\x1b[2Jb\nc")
    assert (await run(sleepy, "resume web")).stderr == "box web a\\x1b[2Jb\\nc\n"
    result = await run(sleepy, "up 'web+^400d' --json")
    assert json.loads(result.stdout)["state"] == "running"
    removal, shortening = [json.loads(line)["note"] for line in result.stderr.splitlines()]
    assert removal == f"removed the old box web ({box.id[:12]})"
    assert "deadline ^400d shortened" in shortening


async def test_pin_and_unpin(sleepy: World) -> None:
    await sleepy.operations.boxes.up(ALICE, "web")
    until = (sleepy.clock.now() + timedelta(hours=8)).strftime("%Y-%m-%dT%H:%M:%SZ")
    result = await run(sleepy, "pin web --for 8h --why 'a build'")
    assert result.stdout == f"NAME  PINNED UNTIL          WHY\nweb   {until}  a build\n"
    view = await document(sleepy, "pin web")
    assert view["pinned_until"] == (sleepy.clock.now() + timedelta(hours=2)).isoformat()
    assert view["next"] == {"act": "suspended", "at": view["pinned_until"]}
    assert (await run(sleepy, "unpin web")).stdout.splitlines()[1].split() == ["web", "-", "-"]
    for line in ("pin web --for 8d", "pin web --for soon"):
        result = await run(sleepy, line)
        assert result.status in (1, 2)
        assert result.stderr


@pytest.mark.parametrize("line", ["suspend web", "resume web", "pin web", "unpin web"])
@pytest.mark.parametrize(
    "stranger", [BOB, SCOPED, Principal(ALICE.owner, None, "share"), Principal("x", None, "cookie")]
)
async def test_only_the_owner_in_scope_has_access(
    sleepy: World, line: str, stranger: Principal
) -> None:
    box = await sleepy.operations.boxes.up(ALICE, "web")
    result = await run(sleepy, line, stranger)
    assert (result.status, result.stdout) == (1, "")
    assert (await sleepy.operations.boxes.list_boxes(ALICE))[0].state == "running"
    assert box.pinned_until is None
