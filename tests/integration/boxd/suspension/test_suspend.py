"""Boxes go to the disk with their memory and run on from it: real runc, real CRIU."""

from __future__ import annotations

import asyncio
import os
import random
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from boxd.backends.checkpoint.dump_restore import RestoreFailed
from boxd.backends.checkpoint.restore_gate import Gate
from boxd.backends.host import cgroups, trees
from boxd.backends.host.run import run
from boxd.backends.interface import BackendBox
from boxd.backends.runc.backend import RuncBackend
from boxd.backends.runc.resumption import RESTORES
from boxd.errors import Conflict, DiskFull, MemoryLost
from tests.harness.boxes.backend import STAND_IN, open_box_host
from tests.harness.boxes.posture import asleep, posture
from tests.harness.boxes.suspending import Sleepy, judging
from tests.harness.wait import until

if TYPE_CHECKING:
    from collections.abc import Callable

    from boxd.backends.checkpoint import criu

pytestmark = pytest.mark.timeout(300)

PORT = 8080
CYCLES = 20


def here(sleepy: Sleepy) -> list[str]:
    """What there is of boxes on the host, but for their directories."""
    return [x for x in sleepy.host.leftovers() if not x.startswith("directory")]


async def test_memory_comes_back(sleepy: Sleepy) -> None:
    guest = await sleepy.guest("memory=20")
    backend, box = sleepy.host.backend, guest.box
    before = guest.state()
    await backend.freeze(box)
    still = guest.tick()
    await asyncio.sleep(0.2)
    assert guest.tick() == still
    assert await backend.list() == [BackendBox(box, running=True, frozen=True)]
    await backend.save_memory(box)
    assert guest.tick() == still
    assert await backend.list() == [BackendBox(box, running=True, frozen=True, memory=True)]
    await backend.stop(box)
    assert await backend.list() == [BackendBox(box, running=False, memory=True)]
    assert here(sleepy) == []
    await backend.resume(box, None)
    assert await backend.list() == [BackendBox(box, running=True)]
    after = await guest.goes_on(still)
    assert (after["pid"], after["nonce"]) == (before["pid"], before["nonce"])


async def test_a_restore_without_permission_costs_no_memory(
    sleepy: Sleepy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the service dies while a restored box waits for it: no process has run."""
    guest = await sleepy.guest()
    backend, box = sleepy.host.backend, guest.box
    asleep = await sleepy.suspend(guest)
    questions = list[bytes]()

    async def die(_: Gate, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        questions.append(await reader.readline())
        writer.close()

    with monkeypatch.context() as patch:
        patch.setattr(Gate, "_answer", die)
        with pytest.raises(RestoreFailed):
            await backend.resume(box, None)
    assert len(questions) == RESTORES
    assert await backend.list() == [BackendBox(box, running=False, memory=True)]
    assert here(sleepy) == []
    await backend.resume(box, None)
    after = await guest.goes_on(asleep["tick"])
    assert after["nonce"] == asleep["nonce"]


async def test_every_step_can_be_undone(sleepy: Sleepy) -> None:
    guest = await sleepy.guest()
    backend, box = sleepy.host.backend, guest.box
    nonce = guest.state()["nonce"]
    await backend.freeze(box)
    await backend.thaw(box)
    await guest.goes_on()
    await backend.freeze(box)
    await backend.save_memory(box)
    await backend.thaw(box)
    assert (await guest.goes_on())["nonce"] == nonce
    assert await backend.list() == [BackendBox(box, running=True)]
    await backend.stop(box)
    assert await backend.list() == [BackendBox(box, running=False)]
    with pytest.raises(MemoryLost):
        await backend.resume(box, None)


async def test_a_frozen_box_can_be_ended(sleepy: Sleepy) -> None:
    guest, other = await sleepy.guest(), await sleepy.guest()
    backend = sleepy.host.backend
    for one in (guest, other):
        await backend.freeze(one.box)
    await backend.stop(guest.box)
    await backend.destroy(other.box)
    assert await backend.list() == [BackendBox(guest.box, running=False)]
    assert here(sleepy) == []


async def at_terminal(sleepy: Sleepy, box: str, shell: str) -> Path:
    """Starts a shell at a terminal of its own; keys go to /root/keys. Returns its screen."""
    host = sleepy.host
    program = f"import pty; pty.spawn([{shell!r}])"
    await host.run(box, "sh", "-c", "cat > /root/terminal.py", stdin=program.encode())
    command = "mkfifo /root/keys; setsid python3 /root/terminal.py"
    await host.run(box, "sh", "-c", f"{command} <>/root/keys >/root/screen 2>&1 &")
    screen = host.names.paths(box).root / "root" / "screen"
    await host.run(box, "sh", "-c", "echo 'word=kept' > /root/keys")
    await until(lambda: "word=kept" in screen.read_text())
    return screen


async def test_servers_and_shells_live_on(sleepy: Sleepy) -> None:
    """A listening socket, watches on root and memory, a terminal with a shell in it."""
    guest = await sleepy.guest(f"serve={PORT}", "watch=/root,/etc,/usr/lib,/run")
    host, box = sleepy.host, guest.box
    screen = await at_terminal(sleepy, box, "bash")
    network = await host.run(box, "sh", "-c", "ip -4 addr show; ip route")
    asleep = await sleepy.suspend(guest)
    await sleepy.resume(guest)
    await guest.goes_on(asleep["tick"])
    ask = f"import socket; print(socket.create_connection(('127.0.0.1', {PORT})).recv(9999))"
    assert asleep["nonce"] in (await host.python(box, ask)).out
    again = await host.run(box, "sh", "-c", "ip -4 addr show; ip route")
    assert re.sub(r"@if\d+", "", again.out) == re.sub(r"@if\d+", "", network.out)
    await host.run(box, "sh", "-c", "echo 'echo got-$word' > /root/keys")
    await until(lambda: "got-kept" in screen.read_text())
    await host.run(box, "sh", "-c", "touch /root/a /etc/a /usr/lib/a /run/a")
    wanted = {"/root/a", "/etc/a", "/usr/lib/a", "/run/a"}
    await until(lambda: wanted <= set(guest.state()["seen"]))


async def test_a_resumed_box_is_bound_as_before(sleepy: Sleepy) -> None:
    guest = await sleepy.guest()
    host, box = sleepy.host, guest.box

    def sleeping() -> list[int]:
        return [x for x in cgroups.pids_of(cgroups.detect(), host.names.cgroup(box)) if asleep(x)]

    def look() -> dict[str, Any]:
        (command,) = sleeping()
        groups = {x: Path(f"/proc/{x}/cgroup").read_text() for x in (host.pid(box), command)}
        return posture(host.pid(box), command) | {"cgroups": [*groups.values()]}

    await until(sleeping)
    before = look()
    seen = ("cat", "/proc/1/cgroup", "/proc/sys/net/ipv4/ping_group_range")
    inside = await host.run(box, *seen)
    assert inside.status == 0
    await sleepy.suspend(guest)
    await sleepy.resume(guest)
    await until(sleeping)
    after = look()
    for process in ("init", "command"):
        # What CRIU gives clocks with.
        after[process]["own_namespaces"].remove("time")
    assert after == before
    assert (await host.run(box, *seen)).out == inside.out
    six = await host.run(box, "cat", "/proc/sys/net/ipv6/conf/eth0/disable_ipv6")
    assert six.out == "1\n"


async def test_again_and_again(sleepy: Sleepy) -> None:
    guest = await sleepy.guest("memory=10", f"serve={PORT}")
    nonce, tick = guest.state()["nonce"], 0
    chance = random.Random(CYCLES)
    for _ in range(CYCLES):
        asleep = await sleepy.suspend(guest)
        assert asleep["tick"] > tick
        tick = asleep["tick"]
        await asyncio.sleep(chance.uniform(0, 0.2))
        await sleepy.resume(guest)
        after = await guest.goes_on(tick)
        assert after["nonce"] == nonce
        await asyncio.sleep(chance.uniform(0, 0.2))


async def test_what_cannot_be_kept_is_told_and_the_box_goes_on(sleepy: Sleepy) -> None:
    guest = await sleepy.guest()
    backend, box = sleepy.host.backend, guest.box
    await at_terminal(sleepy, box, "sh")
    await backend.freeze(box)
    with pytest.raises(Conflict, match=r"`sh` \(pid \d+\) has its terminal open") as refusal:
        await backend.save_memory(box)
    assert "\n" not in str(refusal.value)
    assert await backend.list() == [BackendBox(box, running=True, frozen=True)]
    await backend.thaw(box)
    await guest.goes_on()
    await sleepy.host.run(box, "sh", "-c", "echo exit > /root/keys")
    gone = "while ps ax | grep -q '[t]erminal.py'; do sleep 0.05; done"
    assert (await sleepy.host.run(box, "sh", "-c", gone)).status == 0
    asleep = await sleepy.suspend(guest)
    await sleepy.resume(guest)
    await guest.goes_on(asleep["tick"])


def cut(memory: Path) -> None:
    """The end of the largest file is missing."""
    largest = max(memory.iterdir(), key=lambda file: file.stat().st_size)
    with largest.open("r+b") as file:
        file.truncate(largest.stat().st_size - 4096)


def flip(memory: Path) -> None:
    """One bit of an image is another."""
    data = bytearray((memory / "files.img").read_bytes())
    data[len(data) // 2] ^= 1
    (memory / "files.img").write_bytes(data)


def flip_manifest(memory: Path) -> None:
    """One bit of the manifest is another."""
    data = bytearray((memory / "manifest.json").read_bytes())
    data[len(data) // 2] ^= 1
    (memory / "manifest.json").write_bytes(data)


def remove(memory: Path) -> None:
    """An image is missing."""
    (memory / "inventory.img").unlink()


def flip_pages(memory: Path) -> None:
    """One bit of what the guest itself has in its memory."""
    pages = max(memory.glob("pages-*.img"), key=lambda file: file.stat().st_size)
    with pages.open("r+b") as file:
        file.seek(pages.stat().st_size // 2)
        (byte,) = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 4]))


@pytest.mark.parametrize("damage", [cut, flip, flip_manifest, flip_pages, remove])
async def test_damaged_memory_is_lost_and_the_disk_is_not(
    sleepy: Sleepy, damage: Callable[[Path], None]
) -> None:
    guest = await sleepy.guest()
    backend, box = sleepy.host.backend, guest.box
    await sleepy.host.run(box, "sh", "-c", "echo kept > /root/file")
    await sleepy.suspend(guest)
    damage(sleepy.memory(box))
    with pytest.raises(MemoryLost, match="image of its memory is"):
        await backend.resume(box, None)
    assert await backend.list() == [BackendBox(box, running=False)]
    assert here(sleepy) == []
    await backend.start(box)
    assert (await sleepy.host.run(box, "cat", "/root/file")).out == "kept\n"


async def test_memory_of_another_box_is_refused(sleepy: Sleepy) -> None:
    guest, other = await sleepy.guest(), await sleepy.guest()
    await sleepy.suspend(guest)
    await sleepy.suspend(other)
    mine, foreign = (sleepy.memory(one.box) for one in (guest, other))
    trees.remove_tree(mine)
    foreign.rename(mine)
    with pytest.raises(MemoryLost, match="for another box"):
        await sleepy.host.backend.resume(guest.box, None)


async def test_memory_of_another_kernel_is_refused(sleepy: Sleepy, verdict: criu.Verdict) -> None:
    guest = await sleepy.guest()
    await sleepy.suspend(guest)
    other = judging(replace(verdict, tools="criu 5.0 runc 1.1 linux 9.9"))
    heir = RuncBackend(sleepy.host.config, init=STAND_IN, judge=other)
    await heir.setup()
    with pytest.raises(MemoryLost, match="by another kernel"):
        await heir.resume(guest.box, None)
    await heir.start(guest.box)


async def test_a_restore_that_was_cut_is_not_repeated(sleepy: Sleepy) -> None:
    guest = await sleepy.guest()
    backend, box = sleepy.host.backend, guest.box
    await sleepy.suspend(guest)
    (sleepy.memory(box) / "attempt").touch()
    assert await backend.list() == [BackendBox(box, running=False)]
    with pytest.raises(MemoryLost, match="ended while"):
        await backend.resume(box, None)
    with pytest.raises(MemoryLost, match="has no memory"):
        await backend.resume(box, None)
    await backend.start(box)


async def test_starting_from_disk_gives_memory_up(sleepy: Sleepy) -> None:
    guest = await sleepy.guest()
    backend, box = sleepy.host.backend, guest.box
    await sleepy.suspend(guest)
    await backend.start(box)
    assert await backend.list() == [BackendBox(box, running=True)]
    await backend.stop(box)
    assert await backend.list() == [BackendBox(box, running=False)]


async def test_a_full_disk_costs_nothing(
    tmp_path: Path, image_rootfs: Path, verdict: criu.Verdict
) -> None:
    """The memory does not fit; the box goes on, and can be suspended when there is room."""
    state = tmp_path / "state"
    state.mkdir()
    await run("mount", "-t", "tmpfs", "-o", "size=150m", "small", str(state))
    try:
        async with open_box_host(state, image_rootfs, judge=judging(verdict), boxes_size=0) as host:
            sleepy = Sleepy(host)
            guest = await sleepy.guest("memory=160")
            await host.backend.freeze(guest.box)
            with pytest.raises(DiskFull, match="no room"):
                await host.backend.save_memory(guest.box)
            assert await host.backend.list() == [BackendBox(guest.box, running=True, frozen=True)]
            assert list(host.names.paths(guest.box).directory.glob("mem*")) == []
            await host.backend.thaw(guest.box)
            await guest.goes_on()
            await run("mount", "-o", "remount,size=500m", str(state))
            asleep = await sleepy.suspend(guest)
            await sleepy.resume(guest)
            await guest.goes_on(asleep["tick"])
    finally:
        await run("umount", "--lazy", str(state))
