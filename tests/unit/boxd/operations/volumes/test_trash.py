"""The trash for HTTP, MCP and boxes: access, the limits of boxes, and restores that take long."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from box_guest import protocol
from boxd.errors import BadRequest, Conflict, Forbidden, NotFound, Unavailable
from boxd.principal import Principal
from boxd.workspaces.drive import Condition, Drive
from boxd.workspaces.trash import RestoreRequest, TrashQuery
from tests.harness.http.web import MemoryDrives
from tests.harness.simulation.world import ALICE, BOB, SCOPED

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from boxd.operations import Operations
    from tests.harness.simulation.world import World
    from wrkfs.fs import Filesystem

LONG = b"n" * 200
"""A long name. JSON needs six characters for each of its bytes if it is not UTF-8."""


@pytest.fixture
async def drives() -> AsyncIterator[MemoryDrives]:
    """Return drives with trash for all owners."""
    drives = MemoryDrives()
    yield drives
    await drives.close()


@pytest.fixture
def ops(world: World, drives: MemoryDrives) -> Operations:
    """Return the operations on these drives."""
    world.use_drives(drives)
    return world.operations


async def removed(
    drives: MemoryDrives, *paths: bytes, owner: str = ALICE.owner, ws: str | None = None
) -> None:
    """Write files to a drive and remove them."""
    volume = await drives.volume(owner, ws)
    volume.meta.trash_seconds = 3600
    drive = Drive(volume.fs)
    for path in paths:

        async def body() -> bytes | None:
            return None

        await drive.put(path, body, Condition())
        await drive.delete(path, Condition())


async def listed(ops: Operations, p: Principal, ws: str | None = None) -> list[bytes]:
    return [one.name for one in (await ops.trash.list_trash(p, TrashQuery(), ws)).entries]


async def of_box(ops: Operations, box_id: str, kind: str, **fields: object) -> dict[str, Any]:
    """Send a request as the agent of a box does."""
    parameters = protocol.request_parameters({"type": kind, **fields})
    result = await ops.trash.request_of_box(box_id, kind, parameters)
    protocol.encode({"type": protocol.REPLY, "id": 2**63, "ok": True, "result": result})
    return result


async def test_owners_and_scopes_see_their_own_trash(
    ops: Operations, world: World, drives: MemoryDrives
) -> None:
    await world.operations.workspaces.create_workspace(ALICE, "ws1")
    await removed(drives, b"default")
    await removed(drives, b"in ws1", ws="ws1")
    assert await listed(ops, ALICE) == [b"default"]
    assert await listed(ops, ALICE, "ws1") == [b"in ws1"]
    assert await listed(ops, SCOPED) == [b"in ws1"]
    assert await listed(ops, BOB) == []
    with pytest.raises(Forbidden):
        await listed(ops, SCOPED, "ws2")
    with pytest.raises(NotFound):
        await listed(ops, BOB, "ws1")
    for stranger in (BOB, SCOPED):
        with pytest.raises(NotFound):
            await ops.trash.restore(stranger, RestoreRequest(path=b"default"))
    restored = await ops.trash.restore(SCOPED, RestoreRequest(path=b"in ws1"))
    assert restored.path == b"in ws1"
    share = Principal(ALICE.owner, None, "share", box="b")
    with pytest.raises(Forbidden):
        await ops.trash.restore(share, RestoreRequest(path=b"default"))


async def test_a_box_sees_the_trash_of_its_workspace(ops: Operations, drives: MemoryDrives) -> None:
    web, other = await ops.boxes.up(ALICE, "web"), await ops.boxes.up(ALICE, "ws1/web")
    bobs = await ops.boxes.up(BOB, "web")
    await removed(drives, b"a/f")
    for stranger in (other.id, bobs.id):
        page = await of_box(ops, stranger, "trash_list")
        assert page == {"entries": [], "cursor": None}
        with pytest.raises(NotFound):
            await of_box(ops, stranger, "trash_restore", path="a/f")
    with pytest.raises(NotFound, match="no such box"):
        await of_box(ops, "0" * 32, "trash_list")
    (entry,) = (await of_box(ops, web.id, "trash_list", path="/a"))["entries"]
    assert (entry["path"], entry["name"], entry["is_dir"]) == ("a/f", "f", False)
    result = await of_box(ops, web.id, "trash_restore", number=entry["number"], to="a/g")
    assert result == {
        "path": "a/g",
        "files": 1,
        "directories": 0,
        "missing": [],
        "missing_count": 0,
        "earlier_count": 0,
    }


async def test_names_of_any_bytes_reach_a_box_and_return(
    ops: Operations, drives: MemoryDrives
) -> None:
    box = await ops.boxes.up(ALICE, "web")
    await removed(drives, b"\xff\x80")
    (entry,) = (await of_box(ops, box.id, "trash_list"))["entries"]
    assert entry["path"] == "\udcff\udc80"
    assert (await of_box(ops, box.id, "trash_restore", path=entry["path"]))[
        "path"
    ] == "\udcff\udc80"


async def test_an_answer_to_a_box_fits_into_a_line(ops: Operations, drives: MemoryDrives) -> None:
    box = await ops.boxes.up(ALICE, "web")
    paths = [b"/".join([b"\xff" * 200] * 15 + [b"%d" % number]) for number in range(12)]
    await removed(drives, *paths)
    names, cursor, count = [], None, 0
    while True:
        page = await of_box(ops, box.id, "trash_list", cursor=cursor)
        names += [one["name"] for one in page["entries"]]
        cursor, count = page["cursor"], count + 1
        if cursor is None:
            break
    assert names == [str(number) for number in range(12)][::-1]
    assert count > 1


async def test_a_restore_answers_a_box_in_a_line(ops: Operations, drives: MemoryDrives) -> None:
    box = await ops.boxes.up(ALICE, "web")
    top = b"/".join([b"\xff" * 200] * 15)
    paths = [top + b"/%d" % number for number in range(30)]
    volume = await drives.volume(ALICE.owner, None)
    volume.meta.trash_seconds = 3600
    drive = Drive(volume.fs)

    async def body() -> bytes | None:
        return None

    for _ in range(2):
        for path in paths:
            await drive.put(path, body, Condition())
        await drive.delete(b"\xff" * 200, Condition())
    for path in paths:
        await drive.put(path, body, Condition())
    result = await of_box(ops, box.id, "trash_restore", path=top.decode("utf-8", "surrogateescape"))
    assert result["missing_count"] == 30
    assert 1 <= len(result["missing"]) < 30


class SlowDrives(MemoryDrives):
    """Drives that open when `go` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = asyncio.Event()
        self.go = asyncio.Event()

    @asynccontextmanager
    async def use(
        self, owner: str, workspace: str | None, *, create: bool
    ) -> AsyncIterator[Filesystem | None]:
        self.asked.set()
        await self.go.wait()
        async with super().use(owner, workspace, create=create) as filesystem:
            yield filesystem


@pytest.fixture
async def slow(world: World) -> AsyncIterator[SlowDrives]:
    """Return drives that a test delays; the operations wait a moment for a restore."""
    drives = SlowDrives()
    world.use_drives(drives)
    world.operations.trash._answer_s = 0.01
    yield drives
    await world.operations.close()
    await drives.close()


async def test_a_restore_continues_after_its_caller_left(world: World, slow: SlowDrives) -> None:
    await removed(slow, b"f", b"g")
    trash = world.operations.trash
    with pytest.raises(Unavailable, match="'/f': the restore takes longer than"):
        await trash.restore(ALICE, RestoreRequest(path=b"f"))
    with pytest.raises(Conflict, match="'/g': another restore is running"):
        await trash.restore(ALICE, RestoreRequest(path=b"g"))
    with pytest.raises(BadRequest):
        await trash.restore(ALICE, RestoreRequest())
    slow.go.set()
    await trash._tasks.join()
    trash._answer_s = 10
    assert [one.name for one in (await trash.list_trash(ALICE, TrashQuery())).entries] == [b"g"]
    assert (await trash.restore(ALICE, RestoreRequest(path=b"g"))).files == 1


async def test_restores_of_all_owners_are_limited(world: World, slow: SlowDrives) -> None:
    trash = world.operations.trash
    people = [Principal(f"SHA256:{number}", None, "ssh_key") for number in range(4)]
    for person in people:
        await removed(slow, b"f", owner=person.owner)
        with pytest.raises(Unavailable):
            await trash.restore(person, RestoreRequest(path=b"f"))
    assert len(trash._tasks) == 4
    assert trash._turn.locked()
    slow.go.set()
    await trash._tasks.join()
    trash._answer_s = 10
    for person in people:
        assert (await trash.list_trash(person, TrashQuery())).entries == []


async def test_the_failure_of_a_restore_without_caller_is_logged(
    world: World, slow: SlowDrives, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "boxd.operations.volumes.trash")
    trash = world.operations.trash
    with pytest.raises(Unavailable):
        await trash.restore(ALICE, RestoreRequest(path=b"f"))
    slow.go.set()
    await trash._tasks.join()
    assert "restore '/f' failed after its caller had left: '/f': the trash has no" in caplog.text


async def test_a_cancelled_caller_does_not_end_its_restore(world: World, slow: SlowDrives) -> None:
    await removed(slow, b"f")
    trash = world.operations.trash
    trash._answer_s = 10
    caller = asyncio.create_task(trash.restore(ALICE, RestoreRequest(path=b"f")))
    await slow.asked.wait()
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    slow.go.set()
    await trash._tasks.join()
    assert (await trash.list_trash(ALICE, TrashQuery())).entries == []


async def test_without_drives_the_trash_is_unavailable(world: World) -> None:
    box = await world.operations.boxes.up(ALICE, "web")
    trash = world.operations.trash
    with pytest.raises(Unavailable, match="not enabled"):
        await trash.list_trash(ALICE, TrashQuery())
    with pytest.raises(Unavailable, match="not enabled"):
        await trash.restore(ALICE, RestoreRequest(path=b"f"))
    with pytest.raises(Unavailable, match="not enabled"):
        await of_box(world.operations, box.id, "trash_list")
    assert trash._restoring == set()
