"""Copied boxes on fakes: when there is a template, what it is good for, and what goes wrong."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from boxd.backends import run_directories
from boxd.boxes.lifecycle import templates
from boxd.errors import QuotaExceeded
from boxd.model.box import BoxState
from tests.harness.service.mortal import Died
from tests.harness.simulation.world import World
from tests.unit.boxd.boxes.life import relayed, rows, up

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from boxd.model.box import Box
    from tests.plugins.strict_logs import AssertLogs


@pytest.fixture
async def copying(tmp_path: Path) -> AsyncIterator[World]:
    """A core that copies new boxes; the image is there."""
    world = World(tmp_path, suspends=True, templates=True)
    (tmp_path / "images" / "debian" / "rootfs").mkdir(parents=True)
    await world.start()
    try:
        yield world
    finally:
        await world.close()


async def booted(world: World, text: str = "web") -> Box:
    """A box that had to boot, after what is done behind it."""
    box = await up(world, text)
    assert world.backend.resumes(box.id) == 0
    await world.quiet()
    return box


async def clean(world: World, *, templates: int) -> None:
    """There is nothing on the host but whole boxes and so many templates."""
    left = await world.left_overs()
    assert left.keys() <= {
        *("rows", "backend", "tunnels", "drives", "directories", "snapshots of the host")
    }
    ids = sorted(box.id for box in await rows(world))
    assert left.get("backend", []) == left.get("directories", []) == ids
    assert len(await world.backend.snapshots()) == templates


async def test_the_second_box_is_a_copy_and_another_one(copying: World) -> None:
    first = await booted(copying)
    await clean(copying, templates=1)
    second = await up(copying, "ws1/other")
    assert (second.state, second.memory, second.detail) == (BoxState.RUNNING, False, "")
    assert copying.backend.resumes(second.id) == 1
    assert copying.backend.plan(second.id).hostname == "other"
    assert copying.backend.plan(second.id).egress == "all"
    assert copying.drives.attached == {first.id, second.id}
    assert copying.backend.drive(second.id) is None
    assert copying.steps.done.count("identity") == 3
    await clean(copying, templates=1)
    assert (await copying.lifecycle.suspend(second)).memory


async def test_a_confidential_box_is_no_copy_and_is_not_copied(copying: World) -> None:
    first = await relayed(copying, "first")
    await copying.quiet()
    await clean(copying, templates=0)
    await booted(copying, "usual")
    second = await relayed(copying, "second")
    assert [copying.backend.resumes(box.id) for box in (first, second)] == [0, 0]
    assert copying.backend.resumes((await up(copying, "copy")).id) == 1
    await clean(copying, templates=1)


async def test_what_is_templated_shows_nowhere(copying: World) -> None:
    box = await booted(copying)
    assert [one.id for one in await rows(copying)] == [box.id]
    assert copying.tunnels.open_for == {box.id}
    plans = {copying.backend.plan(one.box_id).hostname for one in await copying.backend.list()}
    assert plans == {"web"}


async def test_each_size_has_its_own(copying: World) -> None:
    await booted(copying)
    await booted(copying, "big:debian:large")
    await clean(copying, templates=2)
    assert copying.backend.resumes((await up(copying, "large2:debian:large")).id) == 1


async def test_a_new_version_of_the_image_has_its_own(copying: World) -> None:
    await booted(copying)
    root = copying.root / "images" / "debian" / "rootfs"
    root.rename(copying.root / "old")
    (copying.root / "new").mkdir()
    root.symlink_to(copying.root / "new")
    await booted(copying, "second")
    assert copying.backend.resumes((await up(copying, "third")).id) == 1


async def test_a_new_call_filter_has_its_own(
    copying: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The memory of a box contains its filter."""
    await booted(copying)
    backend = copying.backend
    before = backend.capabilities()
    monkeypatch.setattr(backend, "capabilities", lambda: replace(before, call_filter="new"))
    await booted(copying, "other")


async def test_a_host_that_cannot_copy_boots(tmp_path: Path) -> None:
    world = World(tmp_path, templates=True)
    await world.start()
    try:
        await booted(world)
        await booted(world, "other")
        await clean(world, templates=0)
    finally:
        await world.close()


async def test_templates_serve_the_next_daemon_and_go_when_they_are_off(copying: World) -> None:
    await booted(copying)
    for end in (copying.restart, copying.crash, copying.reboot):
        await end()
        await copying.quiet()
        box = await up(copying, "copy+")
        assert copying.backend.resumes(box.id) == 1
    copying.templates = False
    await copying.crash()
    await booted(copying, "other")
    await clean(copying, templates=0)


async def test_templates_of_an_image_that_is_gone_go(copying: World) -> None:
    await booted(copying)
    (copying.root / "images" / "debian" / "rootfs").rmdir()
    await copying.restart()
    await clean(copying, templates=0)


async def test_one_of_an_image_that_was_replaced_goes_with_the_next_one(copying: World) -> None:
    root = copying.root / "images" / "debian" / "rootfs"
    root.rmdir()
    for name, version in (("web", "v1"), ("other", "v2")):
        (copying.root / version).mkdir()
        root.unlink(missing_ok=True)
        root.symlink_to(copying.root / version)
        await booted(copying, name)
        (copying.root / version).rmdir()
    await clean(copying, templates=1)


async def test_there_are_so_many(copying: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(templates, "MOST", 1)
    await booted(copying)
    await booted(copying, "big:debian:large")
    await clean(copying, templates=1)
    assert copying.backend.resumes((await up(copying, "big2:debian:large")).id) == 1


@pytest.mark.parametrize("step", ["backend.clone", "backend.resume"])
async def test_a_copy_that_fails_is_a_box_that_boots(
    copying: World, step: str, assert_logs: AssertLogs
) -> None:
    await booted(copying)
    copying.fail_at(step)
    with assert_logs("box not copied"):
        box = await up(copying, "other")
    assert (box.state, box.detail) == (BoxState.RUNNING, "")
    assert copying.backend.resumes(box.id) == 0
    copying.heal()
    await copying.quiet()
    await clean(copying, templates=0)
    await booted(copying, "third")
    assert copying.backend.resumes((await up(copying, "fourth")).id) == 1


async def test_limits_hold_for_copies(copying: World) -> None:
    await booted(copying)
    for number in range(copying.tier.running - 1):
        await up(copying, f"box{number}")
    with pytest.raises(QuotaExceeded):
        await up(copying, "more")
    await clean(copying, templates=1)


@pytest.mark.parametrize("step", ["tunnel.quiesce", "backend.freeze", "backend.snapshot"])
async def test_a_template_that_cannot_be_made_is_no_trouble(
    copying: World, step: str, assert_logs: AssertLogs
) -> None:
    copying.fail_at(step)
    with assert_logs("cannot create a template of image debian"):
        await booted(copying)
    await clean(copying, templates=0)
    copying.heal()
    await booted(copying, "other")
    await clean(copying, templates=0)
    await copying.restart()
    await booted(copying, "third")
    await clean(copying, templates=1)


@pytest.mark.parametrize("end", ["", " done"])
@pytest.mark.parametrize(
    "call", ["tunnel.quiesce", "backend.freeze", "backend.snapshot", "store.put_setting"]
)
async def test_a_daemon_that_dies_while_it_makes_a_template(
    copying: World, call: str, end: str
) -> None:
    box = await up(copying)
    copying.life.end_at(call + end)
    await copying.quiet()
    assert copying.life.dead
    await copying.crash()
    await clean(copying, templates=int(call + end == "store.put_setting done"))
    assert [one.id for one in await rows(copying)] == [box.id]


@pytest.mark.parametrize("end", ["", " done"])
@pytest.mark.parametrize("call", ["backend.clone", "backend.resume", "tunnel.get"])
async def test_a_daemon_that_dies_while_it_copies(copying: World, call: str, end: str) -> None:
    box = await booted(copying)
    copying.life.end_at(call + end)
    with pytest.raises(Died):
        await up(copying, "other")
    await copying.crash()
    await clean(copying, templates=1)
    assert [one.id for one in await rows(copying)] == [box.id]


async def test_an_end_of_the_service_breaks_off_what_is_made(copying: World) -> None:
    await up(copying)
    await copying.close()
    await copying.restart()
    await clean(copying, templates=0)


async def test_an_end_of_the_service_waits_for_the_run_directory_of_a_template(
    copying: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread cannot be cancelled. A file that it writes late would break the removal."""
    write = run_directories._write
    begun, go_on = threading.Event(), threading.Event()
    written: list[Path] = []

    def slow(run_dir: Path, config: str, private_key: bytes) -> None:
        if written:
            begun.set()
            go_on.wait(30)
        write(run_dir, config, private_key)
        written.append(run_dir)

    monkeypatch.setattr(run_directories, "_write", slow)
    await up(copying)
    await asyncio.to_thread(begun.wait, 30)
    asyncio.get_running_loop().call_later(0.1, go_on.set)
    await copying.close()
    assert len(written) == 2


async def test_what_is_left_of_making_one_is_cleared_later(
    copying: World, assert_logs: AssertLogs
) -> None:
    copying.fail_at("backend.destroy")
    with assert_logs("trying again"):
        await booted(copying)
    assert len(await copying.backend.list()) == 2
    copying.heal()
    await copying.tick(timedelta(seconds=31))
    await clean(copying, templates=1)
