"""Boxes are made from others that live, with their memory; both go on, each with its own name."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from boxd.backends.interface import BackendBox
from boxd.backends.records import Records
from boxd.backends.runc.origins import Origins
from boxd.errors import Conflict, NotFound
from tests.harness.boxes.suspending import Guest
from tests.harness.wait import until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.harness.boxes.suspending import Sleepy

pytestmark = pytest.mark.timeout(300)

PORT = 8080
SNAPSHOT = "5" * 32


SOCKETS = """
import os, socket, time
server = socket.create_server(("", 7000))
pairs = []
for address in ("127.0.0.1", OWN):
    pairs.append((socket.create_connection((address, 7000)), server.accept()[0]))
while True:
    said = []
    for one, other in pairs:
        try:
            one.sendall(b"x")
            said.append(other.recv(1).decode())
        except OSError as error:
            said.append(type(error).__name__)
    with open("/root/sockets.new", "w") as file:
        file.write(" ".join(said))
    os.rename("/root/sockets.new", "/root/sockets")
    time.sleep(0.05)
"""
"""Tries one connection by the loopback, and one from and to the box's own address."""


async def fork(sleepy: Sleepy, guest: Guest, hostname: str = "child") -> Guest:
    """A box made of a living one, running."""
    backend = sleepy.host.backend
    await backend.freeze(guest.box)
    await backend.snapshot(guest.box, SNAPSHOT)
    await backend.thaw(guest.box)
    plan = sleepy.host.plan(hostname=hostname)
    await backend.clone(plan, SNAPSHOT)
    await backend.drop_snapshot(SNAPSHOT)
    await backend.resume(plan.box_id, None)
    return Guest(sleepy.host, plan.box_id)


async def test_both_go_on(sleepy: Sleepy) -> None:
    base = await sleepy.guest("memory=10", f"serve={PORT}", "watch=/root,/etc")
    host = sleepy.host
    before = base.state()
    child = await fork(sleepy, base)
    for one in (base, child):
        state = await one.goes_on(before["tick"])
        assert (state["nonce"], state["pid"]) == (before["nonce"], before["pid"])
    found = {box.box_id: box for box in await host.backend.list()}
    assert found == {x: BackendBox(x, running=True) for x in (base.box, child.box)}
    assert host.address(base.box) != host.address(child.box)
    for one, name in ((base, "testbox"), (child, "child")):
        assert (await host.run(one.box, "hostname")).out.strip() == name
        assert (await host.run(one.box, "cat", "/etc/hostname")).out.strip() == name
        assert name in (await host.run(one.box, "cat", "/etc/hosts")).out
        addresses = (await host.run(one.box, "ip", "-4", "-o", "addr")).out
        assert set(re.findall(r"inet (\S+)/", addresses)) == {"127.0.0.1", host.address(one.box)}
        ask = f"import socket; print(socket.create_connection(('127.0.0.1', {PORT})).recv(9999))"
        assert before["nonce"] in (await host.python(one.box, ask)).out
    await host.run(child.box, "sh", "-c", "echo x > /root/only-here")
    assert (await host.run(base.box, "cat", "/root/only-here")).status != 0
    assert await host.backend.snapshots() == ()


async def test_a_child_sleeps_and_has_children(sleepy: Sleepy) -> None:
    base = await sleepy.guest()
    child = await fork(sleepy, base)
    await sleepy.host.backend.stop(base.box)
    asleep = await sleepy.suspend(child)
    await sleepy.resume(child)
    await child.goes_on(asleep["tick"])
    grandchild = await fork(sleepy, child, "grandchild")
    assert (await grandchild.goes_on(asleep["tick"]))["nonce"] == asleep["nonce"]


async def test_connections_out_of_the_box_end_and_inner_ones_live(sleepy: Sleepy) -> None:
    base = await sleepy.guest()
    host = sleepy.host
    program = SOCKETS.replace("OWN", repr(host.address(base.box)))
    await host.run(base.box, "sh", "-c", "cat > /root/sockets.py", stdin=program.encode())
    command = "setsid python3 /root/sockets.py </dev/null >/root/sockets.log 2>&1 &"
    await host.run(base.box, "sh", "-c", command)

    def said(box: str) -> str:
        place = host.names.paths(box).root / "root" / "sockets"
        return place.read_text() if place.exists() else ""

    await until(lambda: said(base.box) == "x x")
    child = await fork(sleepy, base)
    await until(lambda: said(child.box).startswith("x ") and said(child.box) != "x x")
    assert said(base.box) == "x x"


@pytest.mark.parametrize("asleep", [False, True])
async def test_a_snapshot_without_memory_holds_the_disk_alone(sleepy: Sleepy, asleep: bool) -> None:
    base = await sleepy.guest()
    host, backend = sleepy.host, sleepy.host.backend
    await host.run(base.box, "sh", "-c", "echo kept > /root/kept")
    if asleep:
        before = await sleepy.suspend(base)
    else:
        await backend.freeze(base.box)
        before = base.state()
    await backend.snapshot(base.box, SNAPSHOT, memory=False)
    if asleep:
        await sleepy.resume(base)
    else:
        await backend.thaw(base.box)
    assert (await base.goes_on(before["tick"]))["nonce"] == before["nonce"]
    plan = host.plan(hostname="child")
    await backend.clone(plan, SNAPSHOT)
    await backend.drop_snapshot(SNAPSHOT)
    found = {box.box_id: box for box in await backend.list()}
    assert found[plan.box_id] == BackendBox(plan.box_id, running=False, memory=False)
    await backend.start(plan.box_id)
    assert (await host.run(plan.box_id, "cat", "/root/kept")).out == "kept\n"


async def test_a_snapshot_comes_back(sleepy: Sleepy) -> None:
    guest = await sleepy.guest()
    host, backend, box = sleepy.host, sleepy.host.backend, guest.box
    with pytest.raises(Conflict, match="freeze it first"):
        await backend.snapshot(box, SNAPSHOT)
    await backend.freeze(box)
    asleep = guest.state()
    await backend.snapshot(box, SNAPSHOT)
    assert await backend.list() == [BackendBox(box, running=True, frozen=True)]
    await backend.thaw(box)
    await host.run(box, "sh", "-c", "echo later > /root/later")
    with pytest.raises(Conflict, match="stop it first"):
        await backend.restore_snapshot(box, SNAPSHOT)
    await backend.stop(box)
    await backend.restore_snapshot(box, SNAPSHOT)
    assert await backend.list() == [BackendBox(box, running=False, memory=True)]
    await backend.resume(box, None)
    assert (await guest.goes_on(asleep["tick"]))["nonce"] == asleep["nonce"]
    assert (await host.run(box, "cat", "/root/later")).status != 0
    assert await backend.snapshots() == (SNAPSHOT,)
    for _ in range(2):
        await backend.drop_snapshot(SNAPSHOT)
    with pytest.raises(NotFound):
        await backend.clone(host.plan(), SNAPSHOT)


async def test_a_snapshot_of_a_stopped_box_starts_from_its_disk(sleepy: Sleepy) -> None:
    guest = await sleepy.guest()
    host, backend = sleepy.host, sleepy.host.backend
    await backend.stop(guest.box)
    await backend.snapshot(guest.box, SNAPSHOT)
    plan = host.plan(hostname="child")
    await backend.clone(plan, SNAPSHOT)
    await backend.clone(plan, SNAPSHOT)
    await backend.drop_snapshot(SNAPSHOT)
    await backend.start(plan.box_id)
    assert (await host.run(plan.box_id, "cat", "/root/guest.py")).status == 0
    assert (await host.run(plan.box_id, "hostname")).out == "child\n"


async def test_what_is_made_of_a_snapshot_stands_on_its_image(
    sleepy: Sleepy, tmp_path: Path
) -> None:
    """Also when the name of the image means another version by then."""
    guest = await sleepy.guest()
    host, backend = sleepy.host, sleepy.host.backend
    await backend.stop(guest.box)
    await backend.snapshot(guest.box, SNAPSHOT)
    plan = host.plan(hostname="child", rootfs=tmp_path)
    await backend.clone(plan, SNAPSHOT)
    origins, records = Origins(host.names), Records(host.names)
    assert [one.plan.rootfs for one in origins.all()] == [host.rootfs]
    assert records.get(plan.box_id).plan.rootfs == host.rootfs
    await backend.start(plan.box_id)
    assert (await host.run(plan.box_id, "cat", "/root/guest.py")).status == 0
    await backend.drop_snapshot(SNAPSHOT)
    assert list(origins.all()) == []
