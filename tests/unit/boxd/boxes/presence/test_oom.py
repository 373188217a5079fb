"""Out of memory in boxes: told once to a login, and never in the way."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from boxd.boxes.lifecycle.holds import Attachment
from boxd.boxes.presence.attachments import Hold
from boxd.boxes.presence.oom import OomCounter, OomReports
from boxd.errors import Unavailable
from boxd.model.progress import Progress
from tests.unit.boxd.boxes.life import up

if TYPE_CHECKING:
    from boxd.backends.interface import Backend
    from boxd.model.box import Box
    from boxd.tunnel.channel import Tunnel
    from tests.harness.simulation.world import World
    from tests.plugins.strict_logs import AssertLogs


class Broken:
    """A backend whose cgroups cannot be read."""

    async def oom_kills(self, box_id: str) -> int:
        """Fails."""
        raise Unavailable(f"no cgroup of {box_id[:0]}")


async def test_each_kill_is_told_to_one_login(world: World) -> None:
    box = await up(world)
    counter, reports = OomCounter(world.backend, box), OomReports()
    assert await reports.news(counter) is None
    world.backend.killed[box.id] = 2
    news = await reports.news(counter)
    assert news is not None
    assert "killed 2 processes of the box since the last login" in news
    assert f"{box.mem_mb} MiB" in news
    assert await reports.news(counter) is None
    world.backend.killed[box.id] = 3
    news = await reports.news(counter)
    assert news is not None
    assert "killed a process of the box" in news


async def test_a_box_that_was_started_again_counts_from_zero(world: World) -> None:
    box = await up(world)
    counter, reports = OomCounter(world.backend, box), OomReports()
    world.backend.killed[box.id] = 5
    assert await reports.news(counter)
    world.backend.killed[box.id] = 1
    news = await reports.news(counter)
    assert news is not None
    assert "killed a process" in news


async def login(world: World, box: Box) -> str:
    """Return the report that a login shows."""
    notes: list[str] = []
    counter = OomCounter(world.backend, box)
    hold = Hold(box.owner, box.id, "shell", None)
    attachment = Attachment(box, cast("Tunnel", None), hold, oom=counter)
    await world.lifecycle.report_oom(attachment, Progress(notes.append))
    return "".join(notes)


async def test_a_login_after_a_suspension_hears_of_kills_before_it(sleepy: World) -> None:
    box = await up(sleepy)
    sleepy.backend.killed[box.id] = 2
    await sleepy.lifecycle.suspend(box)
    sleepy.backend.killed[box.id] = 0  # the memory comes back in another cgroup
    box = await up(sleepy)
    assert "killed 2 processes" in await login(sleepy, box)
    assert await login(sleepy, box) == ""


async def test_kills_after_a_suspension_are_counted_from_zero(sleepy: World) -> None:
    box = await up(sleepy)
    sleepy.backend.killed[box.id] = 2
    assert await login(sleepy, box)
    await sleepy.lifecycle.suspend(box)
    sleepy.backend.killed[box.id] = 2
    box = await up(sleepy)
    assert "killed 2 processes" in await login(sleepy, box)


async def test_a_removed_box_has_no_count(world: World) -> None:
    box = await up(world)
    await world.backend.destroy(box.id)
    assert await OomCounter(world.backend, box).read() == 0


async def test_a_count_that_fails_is_no_error_of_the_command(
    world: World, assert_logs: AssertLogs
) -> None:
    box = await up(world)
    with assert_logs("cannot count out-of-memory kills: no cgroup"):
        assert await OomCounter(cast("Backend", Broken()), box).read() == 0
