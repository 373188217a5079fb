"""What every backend does alike: over `runc` and `docker` with real boxes, and over the fake.

The boxes of `docker` run with runc, and with the runtime of gVisor.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from boxd.backends.host import processes
from boxd.backends.host.run import run
from boxd.backends.interface import BackendBox, BoxPlan, InitState
from boxd.backends.runc.backend import RuncBackend
from boxd.errors import BoxdError, Conflict, NotFound, Unavailable, Unsupported
from tests.doubles.backend import FakeBackend
from tests.harness.boxes import gvisor
from tests.harness.boxes.backend import STAND_IN, BoxHost, open_box_host
from tests.harness.boxes.dockerd import open_docker_host
from tests.harness.boxes.subject import Subject
from tests.harness.wait import at_once, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.plugins.strict_logs import AssertLogs

PARALLEL = 20


@pytest_asyncio.fixture(params=["runc", "docker", "docker with gVisor", "fake"])
async def subject(
    request: pytest.FixtureRequest, tmp_path: Path, image_rootfs: Path, busybox_root: Path
) -> AsyncIterator[Subject]:
    """The backends in turn."""
    if request.param.startswith("docker"):
        runtime = ""
        if request.param != "docker":
            gvisor.require()
            runtime = gvisor.RUNTIME
        engine, state = request.getfixturevalue("dockerd"), tmp_path / "state"
        async with open_docker_host(engine, state, busybox_root, oci_runtime=runtime) as docker:
            yield Subject(docker.backend, docker, tmp_path)
        return
    if request.param == "runc":
        async with open_box_host(tmp_path / "state", image_rootfs) as host:
            yield Subject(host.backend, host, tmp_path)
        return
    backend = FakeBackend()
    await backend.setup()
    yield Subject(backend, None, tmp_path)
    await backend.close()


async def test_life_of_a_box(subject: Subject) -> None:
    backend, plan = subject.backend, subject.plan()
    await backend.create(plan)
    assert await backend.list() == [BackendBox(plan.box_id, running=False)]
    await backend.start(plan.box_id)
    assert await subject.states() == {plan.box_id: True}
    assert (await backend.stats(plan.box_id)).pids >= 1
    await backend.stop(plan.box_id)
    assert await subject.states() == {plan.box_id: False}
    await backend.start(plan.box_id)
    assert await subject.states() == {plan.box_id: True}
    await backend.destroy(plan.box_id)
    assert await subject.states() == {}
    assert subject.leftovers() == []


async def test_a_box_whose_init_is_stopped_is_a_suspect(subject: Subject) -> None:
    backend, stopped, well = subject.backend, subject.plan(), subject.plan()
    for plan in (stopped, well):
        await backend.create(plan)
        await backend.start(plan.box_id)
    ids = (stopped.box_id, well.box_id)
    assert await backend.suspect_inits(ids) == set()
    if isinstance(backend, FakeBackend):
        backend.init_states[stopped.box_id] = InitState(stopped="a signal stopped it")
    else:
        assert subject.host is not None
        pid = subject.host.pid(stopped.box_id)
        os.kill(pid, signal.SIGSTOP)
        await until(lambda: processes.init_state(pid).stopped)
    assert await backend.suspect_inits(ids) == {stopped.box_id}
    assert (await backend.init_state(stopped.box_id)).stopped == "a signal stopped it"
    for plan in (stopped, well):
        await backend.destroy(plan.box_id)


async def test_sockets_inside_see_the_box_alone(subject: Subject) -> None:
    backend, plan = subject.backend, subject.plan()
    await backend.create(plan)
    await backend.start(plan.box_id)
    loop = asyncio.get_running_loop()
    for family, loopback in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        listener = await backend.tcp_socket(plan.box_id, family)
        if subject.host is None:
            assert listener is None
            continue
        assert listener is not None
        near = await backend.tcp_socket(plan.box_id, family)
        assert near is not None
        with listener, near, socket.socket(family) as outside:
            if family is socket.AF_INET6 and backend.name == "docker":
                continue  # the engine gives containers none
            listener.bind((loopback, 0))
            listener.listen()
            address = listener.getsockname()
            await loop.sock_connect(near, address)
            accepted, _ = await loop.sock_accept(listener)
            accepted.close()
            assert await loop.sock_recv(near, 1) == b""
            with pytest.raises(ConnectionRefusedError):
                outside.connect(address)
    await backend.destroy(plan.box_id)
    assert await backend.tcp_socket(plan.box_id, socket.AF_INET) is None
    assert subject.leftovers() == []


async def test_every_call_can_be_repeated(subject: Subject) -> None:
    backend, plan = subject.backend, subject.plan()
    for _ in range(2):
        await backend.create(plan)
    for _ in range(2):
        await backend.start(plan.box_id)
    for _ in range(2):
        await backend.create(plan)
    assert await subject.states() == {plan.box_id: True}
    for _ in range(2):
        await backend.detach_drive(plan.box_id)
    for _ in range(2):
        await backend.stop(plan.box_id)
    await backend.detach_drive(plan.box_id)
    for _ in range(2):
        await backend.destroy(plan.box_id)
    assert await subject.states() == {}
    assert subject.leftovers() == []


async def test_unknown_boxes(subject: Subject) -> None:
    backend, unknown = subject.backend, "f" * 32
    await backend.destroy(unknown)
    with pytest.raises(NotFound):
        await backend.start(unknown)
    with pytest.raises(NotFound):
        await backend.stop(unknown)
    with pytest.raises(NotFound):
        await backend.stats(unknown)
    with pytest.raises(NotFound):
        await backend.attach_drive(unknown, subject.tmp_path)
    with pytest.raises(NotFound):
        await backend.detach_drive(unknown)
    with pytest.raises(NotFound):
        await backend.freeze(unknown)
    with pytest.raises(NotFound):
        await backend.resume(unknown, None)


async def test_what_it_cannot_do_it_says(subject: Subject) -> None:
    backend, plan = subject.backend, subject.plan()
    can = backend.capabilities()
    assert can.suspend is False
    assert can.why_no_suspend
    await backend.create(plan)
    with pytest.raises(Unsupported, match="suspend"):
        await backend.freeze(plan.box_id)
    with pytest.raises(Unsupported, match="suspend"):
        await backend.resume(plan.box_id, None)


async def test_a_stopped_box_takes_no_drive(subject: Subject) -> None:
    backend, plan = subject.backend, subject.plan()
    await backend.create(plan)
    with pytest.raises(Conflict, match="is not running"):
        await backend.attach_drive(plan.box_id, subject.tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(120)
async def test_many_at_once(subject: Subject) -> None:
    backend = subject.backend
    plans = [subject.plan() for _ in range(PARALLEL)]

    async def live(plan: BoxPlan) -> None:
        await backend.create(plan)
        await backend.start(plan.box_id)

    await asyncio.gather(*(live(plan) for plan in plans))
    assert await subject.states() == {plan.box_id: True for plan in plans}
    if subject.host is not None:
        addresses = {subject.host.address(plan.box_id) for plan in plans}
        assert len(addresses) == PARALLEL
    await asyncio.gather(*(backend.destroy(plan.box_id) for plan in plans))
    assert await subject.states() == {}
    assert subject.leftovers() == []


async def test_calls_for_one_box_do_not_interleave(subject: Subject) -> None:
    backend, plan = subject.backend, subject.plan()
    await backend.create(plan)
    await asyncio.gather(*(backend.start(plan.box_id) for _ in range(3)))
    await asyncio.gather(backend.destroy(plan.box_id), backend.destroy(plan.box_id))
    assert subject.leftovers() == []


class TestRunc:
    """What only a backend with processes can show."""

    async def test_the_disk_outlives_a_stop(self, box_host: BoxHost) -> None:
        box = await box_host.box()
        await box_host.run(box, "sh", "-c", "echo kept > /root/file; rm /etc/hostname")
        await box_host.backend.stop(box)
        assert not [x for x in box_host.leftovers() if not x.startswith("directory")]
        await box_host.backend.start(box)
        assert (await box_host.run(box, "cat", "/root/file")).out == "kept\n"
        assert (await box_host.run(box, "cat", "/etc/hostname")).status != 0
        assert (await box_host.backend.stats(box)).disk_bytes > 0

    async def test_the_image_is_never_written(self, box_host: BoxHost) -> None:
        box = await box_host.box()
        await box_host.run(box, "sh", "-c", "echo mine > /etc/debian_version")
        other = await box_host.box()
        assert (await box_host.run(other, "cat", "/etc/debian_version")).out.startswith("12")

    @pytest.mark.parametrize("step", ["rootfs", "runtime", "init", "hostname"])
    async def test_a_failing_step_leaves_nothing(
        self, box_host: BoxHost, tmp_path: Path, step: str
    ) -> None:
        backend = box_host.backend
        plan = box_host.plan()
        words = {"rootfs": "missing on this host", "runtime": "absent cannot be shown"}.get(step)
        if words is not None:
            absent = tmp_path / "absent"
            plan = (
                replace(plan, rootfs=absent) if step == "rootfs" else replace(plan, runtime=absent)
            )
            with pytest.raises(BoxdError, match=words):
                await backend.create(plan)
            assert box_host.leftovers() == []
            return
        if step == "init":
            backend = RuncBackend(box_host.config, init=("/absent/program",))
            await backend.setup()
        await backend.create(plan)
        if step == "hostname":
            plan = replace(plan, hostname="x" * 200)
            await backend.create(plan)
        with pytest.raises(BoxdError, match="does not start"):
            await backend.start(plan.box_id)
        assert [x for x in box_host.leftovers() if not x.startswith("directory")] == []
        await backend.destroy(plan.box_id)
        assert box_host.leftovers() == []

    async def test_a_cancelled_start_leaves_nothing(self, box_host: BoxHost) -> None:
        plan = box_host.plan()
        await box_host.backend.create(plan)
        starting = asyncio.create_task(box_host.backend.start(plan.box_id))
        await at_once((box_host.names.paths(plan.box_id).bundle / "config.json").exists)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        assert [x for x in box_host.leftovers() if not x.startswith("directory")] == []
        await box_host.backend.start(plan.box_id)
        assert [box.running for box in await box_host.backend.list()] == [True]

    async def test_an_init_that_does_not_listen_is_killed(self, box_host: BoxHost) -> None:
        deaf = ("/bin/sh", "-c", "trap '' TERM; while :; do sleep 1; done")
        backend = RuncBackend(box_host.config, init=deaf, stop_grace=0.2)
        await backend.setup()
        plan = box_host.plan()
        await backend.create(plan)
        await backend.start(plan.box_id)
        await backend.stop(plan.box_id)
        assert [box.running for box in await backend.list()] == [False]

    async def test_a_box_that_ended_by_itself_starts_again(self, box_host: BoxHost) -> None:
        box = await box_host.box()
        await box_host.run(box, "sh", "-c", "kill 1")
        init = (box_host.names.paths(box).pid, box_host.names.cgroup(box))
        await until(lambda: not processes.runs(*init))
        await box_host.backend.start(box)
        assert (await box_host.run(box, "echo", "back")).out == "back\n"

    async def test_another_object_adopts_what_lives(self, box_host: BoxHost) -> None:
        running = await box_host.box()
        stopped = box_host.plan()
        await box_host.backend.create(stopped)
        before = box_host.pid(running)
        heir = RuncBackend(box_host.config, init=STAND_IN)
        await heir.setup()
        states = {box.box_id: box.running for box in await heir.list()}
        assert states == {running: True, stopped.box_id: False}
        await heir.start(running)
        assert box_host.pid(running) == before
        third = box_host.plan()
        await heir.create(third)
        assert len({box_host.address(box) for box in (running, stopped.box_id, third.box_id)}) == 3
        await heir.stop(running)
        await heir.destroy(running)
        await heir.destroy(stopped.box_id)
        await heir.destroy(third.box_id)
        assert box_host.leftovers() == []

    async def test_what_died_alone_holds_nothing_of_the_host(self, box_host: BoxHost) -> None:
        """While no service ran: its link and its namespace are not kept until its next start."""
        box = await box_host.box()
        table = ("nft", "list", "table", "inet", box_host.names.table)
        assert f'"{box_host.names.link(0)}"' in await run(*table)
        os.kill(box_host.pid(box), signal.SIGKILL)
        heir = RuncBackend(box_host.config, init=STAND_IN)
        await until(lambda: not processes.runs(*heir._containers._init_of(box)))
        await heir.setup()
        assert box_host.leftovers() == [f"directory {box}"]
        assert f'"{box_host.names.link(0)}"' not in await run(*table)
        await heir.start(box)
        assert (await box_host.run(box, "ip", "-4", "addr", "show", "eth0")).status == 0

    async def test_a_damaged_record_harms_no_other_box_and_keeps_the_disk(
        self, box_host: BoxHost, assert_logs: AssertLogs
    ) -> None:
        """As after a loss of power; the box goes on if it lives, and can be removed."""
        well, ill, gone = [await box_host.box() for _ in range(3)]
        await box_host.run(ill, "sh", "-c", "echo kept > /file")
        for box in (ill, gone):
            box_host.names.paths(box).record.rename(box_host.config.state_dir / box)
        box_host.names.paths(ill).record.write_text("")
        heir = RuncBackend(box_host.config, init=STAND_IN)
        with assert_logs("cannot be read"):
            await heir.setup()
        assert {one.box_id: one.running for one in await heir.list()}.items() >= {
            (well, True),
            (ill, True),
        }
        await heir.stop(ill)
        with pytest.raises(Unavailable, match="the box's disk is kept"):
            await heir.start(ill)
        (box_host.config.state_dir / ill).rename(box_host.names.paths(ill).record)
        await heir.start(ill)
        assert (await box_host.run(ill, "cat", "/file")).out == "kept\n"
        box_host.names.paths(ill).record.write_text("{")
        assert (await box_host.run(well, "true")).status == 0
        for box in (ill, gone, well):
            await heir.destroy(box)
        assert box_host.leftovers() == []

    async def test_a_lost_network_is_made_again(self, box_host: BoxHost) -> None:
        """As after a reboot, or when somebody tidied up the host."""
        box = await box_host.box()
        await box_host.backend.stop(box)
        await box_host.backend.start(box)
        await run("ip", "netns", "del", box_host.names.netns(box))
        await box_host.backend.stop(box)
        await box_host.backend.start(box)
        assert (await box_host.run(box, "ip", "-4", "addr", "show", "eth0")).status == 0
        await run("ip", "netns", "del", box_host.names.netns(box))
        await box_host.backend.destroy(box)
        assert box_host.leftovers() == []

    async def test_close_leaves_the_host_as_it_was(self, box_host: BoxHost) -> None:
        box = await box_host.box()
        await box_host.backend.close()
        assert [one.running for one in await box_host.backend.list()] == [True]
        await box_host.backend.setup()
        await box_host.backend.destroy(box)
        await box_host.backend.close()
        assert not (box_host.names.boxes_dir / "subnet").exists()
        assert not box_host.names.runc_root.parent.exists()
        await box_host.backend.setup()
