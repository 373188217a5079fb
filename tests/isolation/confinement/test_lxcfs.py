"""A box reads its own size in /proc and /sys, in a new box and after every kind of restore.

Each box has an lxcfs process of its own. What it does to that process is no matter of other boxes.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from boxd.backends.checkpoint import criu_images, image_rewrite
from boxd.backends.host import cgroups
from boxd.backends.oci import bundle, lxcfs, mount_table
from boxd.backends.runc.backend import RuncBackend
from boxd.errors import Unavailable
from tests.harness.boxes.backend import STAND_IN
from tests.harness.boxes.lives import WAYS
from tests.harness.boxes.suspending import judging
from tests.harness.wait import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from boxd.backends.checkpoint import criu
    from tests.harness.boxes.backend import BoxHost
    from tests.harness.boxes.lives import Way
    from tests.harness.boxes.suspending import Guest, Sleepy
    from tests.plugins.strict_logs import AssertLogs

pytestmark = pytest.mark.timeout(300)

LOOK = """
import json, os
def lines(path):
    with open(path) as file:
        return file.read().splitlines()
def seen():
    memory = dict(line.split(":", 1) for line in lines("/proc/meminfo"))
    return {
        "total_kb": int(memory["MemTotal"].split()[0]),
        "free_kb": int(memory["MemFree"].split()[0]),
        "cpuinfo": sum(line.startswith("processor") for line in lines("/proc/cpuinfo")),
        "stat": sum(line.startswith("cpu") for line in lines("/proc/stat")) - 1,
        "swaps": len(lines("/proc/swaps")),
        "online": lines("/sys/devices/system/cpu/online"),
        "cpu_count": os.cpu_count(),
        "runs": lines("/proc/loadavg")[0].split()[3],
    }
"""
KEEPER = (
    LOOK
    + """
import time
places = json.loads(%r)
files = {path: os.open(path, os.O_RDONLY) for path in places}
begun = {path: os.read(file, 8) for path, file in files.items()}
tick = 0
while True:
    tick += 1
    told = {path: len(os.pread(file, 65536, 0)) for path, file in files.items()}
    with open("/root/kept.new", "w") as out:
        json.dump({"tick": tick, "told": told}, out)
    os.rename("/root/kept.new", "/root/kept")
    time.sleep(0.05)
"""
) % json.dumps(lxcfs.PLACES)
"""A program with all files open, in the midst of a read, which reads them again and again."""
HOARD = """
import os
held = []
try:
    while True:
        held.append(os.open("/proc/stat", os.O_RDONLY))
except OSError as error:
    print(len(held), error.errno)
"""


async def look(host: BoxHost, box: str) -> dict[str, Any]:
    """What a program in the box reads of its size."""
    result = await host.python(box, LOOK + "print(json.dumps(seen()))")
    assert result.status == 0, result.err
    seen: dict[str, Any] = json.loads(result.out)
    return seen


def is_of_the_box(seen: dict[str, Any], cpus: int, mem_mb: int) -> None:
    """Compares what a box reads with its limits. cgroup v2 has no times for each processor, so
    there /proc/stat has the lines of the host."""
    assert seen["total_kb"] == mem_mb * 1024
    assert 0 < seen["free_kb"] < mem_mb * 1024
    if cgroups.detect().mode is cgroups.Mode.V2:
        seen["stat"] = cpus
    counts = {seen[name] for name in ("cpuinfo", "stat", "cpu_count")}
    assert counts == {cpus}, seen
    assert seen["online"] == ["0" if cpus == 1 else f"0-{cpus - 1}"]
    assert seen["swaps"] == 1  # the heading


def server(host: BoxHost, box: str) -> list[int]:
    """Processes of the box's lxcfs."""
    return cgroups.pids_of(cgroups.detect(), host.names.lxcfs_cgroup(box))


def faults(host: BoxHost, box: str) -> list[str]:
    """How the mounts of a box differ from its bundle."""
    config = json.loads((host.names.paths(box).bundle / "config.json").read_text())
    table = Path(f"/proc/{host.pid(box)}/mountinfo").read_text()
    return mount_table.differences(config, mount_table.parse(table))


async def dies(host: BoxHost, box: str) -> None:
    """Kills the lxcfs of a box."""
    before = server(host, box)
    for pid in before:
        os.kill(pid, signal.SIGKILL)
    await until(lambda: not set(before) & set(server(host, box)))


async def test_a_new_box_reads_its_own_size(box_host: BoxHost) -> None:
    small = await box_host.box(cpus=0.5, mem_mb=192)
    large = await box_host.box(cpus=float(os.cpu_count() or 1), mem_mb=256)
    is_of_the_box(await look(box_host, small), 1, 192)
    is_of_the_box(await look(box_host, large), os.cpu_count() or 1, 256)


async def test_memory_in_use_is_that_of_the_box(box_host: BoxHost) -> None:
    box, other = await box_host.box(), await box_host.box()
    before, beside = await look(box_host, box), await look(box_host, other)
    program = LOOK + "held = b'x' * (96 << 20)\nprint(json.dumps(seen()))"
    during = json.loads((await box_host.python(box, program)).out)
    assert before["free_kb"] - during["free_kb"] > 80 * 1024
    after = await look(box_host, other)
    assert abs(after["free_kb"] - beside["free_kb"]) < 16 * 1024


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
async def test_a_restored_box_reads_its_own_size(sleepy: Sleepy, way: Way) -> None:
    guest = await way(sleepy, mem_mb=192)
    is_of_the_box(await look(sleepy.host, guest.box), 1, 192)
    assert faults(sleepy.host, guest.box) == []


async def keeps_open(sleepy: Sleepy, guest: Guest) -> None:
    """Starts the program with all files open; returns when it has read them."""
    command = "cat >/root/keeper.py; setsid python3 /root/keeper.py </dev/null >/root/out 2>&1 &"
    await sleepy.host.run(guest.box, "sh", "-c", command, stdin=KEEPER.encode())
    await until(lambda: kept(sleepy, guest)["tick"] > 0)


async def reads_again(sleepy: Sleepy, guest: Guest) -> None:
    """Waits until that program has read all files once more."""
    tick = kept(sleepy, guest)["tick"]
    await until(lambda: kept(sleepy, guest)["tick"] > tick)


def kept(sleepy: Sleepy, guest: Guest) -> dict[str, Any]:
    """What that program has read last."""
    place = sleepy.host.names.paths(guest.box).root / "root/kept"
    if not place.exists():
        return {"tick": 0}
    content: dict[str, Any] = json.loads(place.read_text())
    return content


async def test_open_files_survive_a_suspension(sleepy: Sleepy) -> None:
    guest = await sleepy.guest()
    await keeps_open(sleepy, guest)
    for _ in range(3):
        await sleepy.suspend(guest)
        assert server(sleepy.host, guest.box) == []
        await sleepy.resume(guest)
        await reads_again(sleepy, guest)
    assert all(kept(sleepy, guest)["told"].values())


async def test_a_restore_compares_no_length_of_open_files(sleepy: Sleepy) -> None:
    """lxcfs gives each file the length of the host's, which changes while a box sleeps."""
    guest = await sleepy.guest()
    await keeps_open(sleepy, guest)
    await sleepy.suspend(guest)
    root = sleepy.host.names.paths(guest.box).root
    memory = sleepy.memory(guest.box)
    image_rewrite.adapt(memory, "testbox", by=None)
    images = (memory / image_rewrite.FILES, image_rewrite.place(memory) / image_rewrite.FILES)
    dumped, restored = (
        {file.name.decode(): file.size for file in criu_images.open_files(data.read_bytes(), b"")}
        for data in images
    )
    image_rewrite.clear(memory, root)
    assert all(dumped[place] for place in lxcfs.PLACES)
    assert {restored[place] for place in lxcfs.PLACES} == {None}


async def test_processes_have_an_age(box_host: BoxHost) -> None:
    """The uptime that a box reads fits the start times of its processes."""
    box = await box_host.box()
    age = int((await box_host.run(box, "ps", "-o", "etimes=", "-p", "1")).out)
    assert 0 <= age < 300


async def test_files_come_back_when_lxcfs_dies(sleepy: Sleepy, assert_logs: AssertLogs) -> None:
    host, guest = sleepy.host, await sleepy.guest()
    with assert_logs("the lxcfs of a box died"):
        await dies(host, guest.box)
        await until(lambda: bool(server(host, guest.box)))
        await until(lambda: faults(host, guest.box) == [])
        await until_answered(host, guest.box)
    is_of_the_box(await look(host, guest.box), 1, 256)
    assert faults(host, guest.box) == []
    await sleepy.suspend(guest)
    await sleepy.resume(guest)
    is_of_the_box(await look(host, guest.box), 1, 256)


async def until_answered(host: BoxHost, box: str) -> None:
    """Waits until the files of the box are those of a living lxcfs."""
    place = f"/proc/{host.pid(box)}/root{lxcfs.PLACES[0]}"

    def answers() -> bool:
        try:
            return bool(Path(place).read_bytes())
        except OSError:
            return False

    await until(answers)


async def test_a_box_ends_only_its_own_lxcfs(box_host: BoxHost, assert_logs: AssertLogs) -> None:
    box, other = await box_host.box(mem_mb=512), await box_host.box()
    before = server(box_host, other)
    with assert_logs("the lxcfs of a box died"):
        result = await box_host.python(box, HOARD)
        assert int(result.out.split()[0]) > 1000, result
        is_of_the_box(await look(box_host, other), 1, 256)
        await until_answered(box_host, box)
    assert server(box_host, other) == before
    is_of_the_box(await look(box_host, box), 1, 512)


async def test_the_next_service_adopts_lxcfs(
    sleepy: Sleepy, verdict: criu.Verdict, assert_logs: AssertLogs
) -> None:
    host = sleepy.host
    whole, hurt, asleep = await host.box(), await host.box(), await sleepy.guest()
    await sleepy.suspend(asleep)
    await host.backend.close()  # boxes go on
    before = server(host, whole)
    await dies(host, hurt)
    with assert_logs("the lxcfs of a box died"):
        async with service(sleepy, verdict):
            await until_answered(host, hurt)
            await until(lambda: faults(host, hurt) == [])
            assert server(host, whole) == before
            assert server(host, asleep.box) == []
            is_of_the_box(await look(host, whole), 1, 256)
            is_of_the_box(await look(host, hurt), 1, 256)


async def test_nothing_of_it_is_left(box_host: BoxHost) -> None:
    box = await box_host.box()
    (pid, *_) = server(box_host, box)
    assert box_host.names.lxcfs.joinpath(box).exists()
    await box_host.backend.stop(box)
    assert not Path(f"/proc/{pid}/exe").exists()
    assert list(box_host.names.lxcfs.iterdir()) == []
    await box_host.backend.destroy(box)
    assert box_host.leftovers() == []


async def test_a_hanging_lxcfs_does_not_keep_its_box(box_host: BoxHost) -> None:
    box = await box_host.box()
    for pid in server(box_host, box):
        os.kill(pid, signal.SIGSTOP)
    await box_host.run(box, "sh", "-c", "cat /proc/meminfo >/dev/null 2>&1 &")
    await box_host.backend.destroy(box)
    assert box_host.leftovers() == []


async def absent() -> Path:
    """A host without lxcfs."""
    raise Unavailable("lxcfs is not installed")


@asynccontextmanager
async def service(sleepy: Sleepy, verdict: criu.Verdict) -> AsyncIterator[RuncBackend]:
    """The next service of the host; the one before it has been closed, and boxes go on."""
    backend = RuncBackend(sleepy.host.config, init=STAND_IN, judge=judging(verdict))
    await backend.setup()
    sleepy.host.backend = backend
    try:
        yield backend
    finally:
        await backend.close()


async def test_without_lxcfs_boxes_run_and_memory_waits(
    sleepy: Sleepy, monkeypatch: pytest.MonkeyPatch, assert_logs: AssertLogs, verdict: criu.Verdict
) -> None:
    host, guest = sleepy.host, await sleepy.guest()
    await sleepy.suspend(guest)
    await host.backend.close()
    monkeypatch.setattr(lxcfs, "find", absent)
    with assert_logs("lxcfs is not installed: boxes see the processors"):
        async with service(sleepy, verdict) as poor:
            box = await host.box()
            assert (await look(host, box))["cpu_count"] == os.cpu_count()
            with pytest.raises(Unavailable, match="lxcfs is missing on this host"):
                await sleepy.resume(guest)
            assert {one.box_id: one.memory for one in await poor.list()}[guest.box]
    monkeypatch.undo()
    async with service(sleepy, verdict):
        await sleepy.resume(guest)
        is_of_the_box(await look(host, guest.box), 1, 256)


async def test_memory_of_boxes_without_lxcfs_is_restored_without(
    sleepy: Sleepy, monkeypatch: pytest.MonkeyPatch, assert_logs: AssertLogs, verdict: criu.Verdict
) -> None:
    host, snapshot = sleepy.host, secrets.token_hex(16)
    await host.backend.close()
    monkeypatch.setattr(lxcfs, "find", absent)
    with assert_logs("lxcfs is not installed: boxes see the processors"):
        async with service(sleepy, verdict) as poor:
            guest = await sleepy.guest()
            await poor.freeze(guest.box)
            await poor.snapshot(guest.box, snapshot)
            await poor.thaw(guest.box)
            await sleepy.suspend(guest)
    monkeypatch.undo()
    async with service(sleepy, verdict) as rich:
        await sleepy.resume(guest)
        child = host.plan(hostname="child")
        await rich.clone(child, snapshot)
        await rich.drop_snapshot(snapshot)
        await rich.resume(child.box_id, None)
        for box in (guest.box, child.box_id):
            assert (await look(host, box))["cpu_count"] == os.cpu_count()
            assert server(host, box) == []
            assert faults(host, box) == []
        await rich.stop(child.box_id)
        await rich.start(child.box_id)
        is_of_the_box(await look(host, child.box_id), 1, 256)


def test_no_place_is_masked_as_well() -> None:
    assert not set(lxcfs.PLACES) & set(bundle.MASKED_PATHS)
