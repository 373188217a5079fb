"""What the docker backend does beyond the contract of all: images, adoption, its engine."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from boxd.backends.docker.backend import DockerBackend
from boxd.backends.docker.engine import Engine
from boxd.backends.host import processes
from boxd.backends.host.run import run
from boxd.backends.network.host_network import Network
from boxd.errors import BoxdError, Conflict, Unavailable, UnknownImage, Unsupported
from tests.harness.boxes import gvisor
from tests.harness.boxes.backend import STAND_IN
from tests.harness.boxes.dockerd import open_docker_host, open_dockerd
from tests.harness.boxes.registry import registry
from tests.harness.wait import at_once, until

if TYPE_CHECKING:
    from boxd.backends.interface import BoxPlan
    from tests.harness.boxes.dockerd import Dockerd, DockerHost


def any_image(host: DockerHost, reference: str) -> BoxPlan:
    """A plan of a box from an image that is in no catalog."""
    return host.plan(image=reference, rootfs=None)


SLEEP = ("/bin/sleep", "1000")


def ended(pid: int) -> bool:
    """Whether a process is a zombie or gone."""
    try:
        return processes.is_zombie(Path(f"/proc/{pid}/stat").read_text(encoding="ascii"))
    except OSError:
        return True


def networks(host: DockerHost) -> list[str]:
    """Links and network namespaces of boxes."""
    return [line for line in host.leftovers() if line.startswith(("netns", "link"))]


async def state_of(host: DockerHost, box: str) -> bool:
    """Whether the backend says that it runs."""
    return {one.box_id: one.running for one in await host.backend.list()}[box]


async def test_the_disk_outlives_a_stop(docker_host: DockerHost) -> None:
    box = await docker_host.box()
    command = "echo kept > /root/file; dd if=/dev/zero of=/root/big bs=1M count=3"
    await docker_host.run(box, "sh", "-c", command)
    await docker_host.backend.stop(box)
    assert networks(docker_host) == []
    await docker_host.backend.start(box)
    assert (await docker_host.run(box, "cat", "/root/file")).out == "kept\n"
    stats = await docker_host.backend.stats(box)
    assert stats.disk_bytes >= 3 << 20
    assert stats.memory_bytes > 0


async def test_the_link_counts_what_the_box_sends(docker_host: DockerHost) -> None:
    box = await docker_host.box()
    before = (await docker_host.backend.stats(box)).net_tx_bytes
    await docker_host.run(box, "nc", "-w", "1", "10.255.255.254", "9")
    assert (await docker_host.backend.stats(box)).net_tx_bytes > before


async def test_names_and_resolvers_are_the_boxs(docker_host: DockerHost) -> None:
    box = await docker_host.box()
    assert (await docker_host.run(box, "hostname")).out == "testbox\n"
    hosts = (await docker_host.run(box, "cat", "/etc/hosts", "/etc/hostname")).out
    assert "127.0.1.1\ttestbox\n" in hosts
    resolvers = (await docker_host.run(box, "cat", "/etc/resolv.conf")).out.split()
    assert set(resolvers[::2]) == {"nameserver"}


async def test_a_runtime_that_the_engine_lacks_is_refused_with_those_that_it_has(
    docker_host: DockerHost,
) -> None:
    await docker_host.backend.require_kind("", containers=False)
    await docker_host.backend.require_kind("runc", containers=False)
    with pytest.raises(Unsupported, match=r"no runtime 'kata' \(it has: .*runc.*daemon.json"):
        await docker_host.backend.require_kind("kata", containers=False)
    with pytest.raises(Unsupported, match="no user namespace of their own"):
        await docker_host.backend.require_kind("", containers=True)
    plan = docker_host.plan(oci_runtime="kata")
    with pytest.raises(BoxdError, match=r"cannot be created: .*kata"):
        await docker_host.backend.create(plan)
    assert docker_host.leftovers() == []


async def test_a_box_of_gvisor_has_another_kernel_and_takes_no_drive(
    dockerd: Dockerd, tmp_path: Path, busybox_root: Path
) -> None:
    gvisor.require()
    runtime = gvisor.RUNTIME
    async with open_docker_host(
        dockerd, tmp_path / "state", busybox_root, oci_runtime=runtime
    ) as host:
        await host.backend.require_kind(runtime, containers=False)
        box = await host.box()
        assert "gvisor" in (await host.run(box, "uname", "-r")).out
        await host.run(box, "sh", "-c", "echo kept > /root/file")
        with pytest.raises(Unsupported, match="runtime 'runsc' cannot have /wrk"):
            await host.backend.attach_drive(box, tmp_path)
        await host.backend.detach_drive(box)
        await host.backend.stop(box)
        await host.backend.start(box)
        assert (await host.run(box, "cat", "/root/file")).out == "kept\n"
        assert (await host.run(box, "ip", "addr", "show", "eth0")).status == 0


async def test_a_root_of_the_catalog_is_imported_once_and_again_when_it_is_built_anew(
    docker_host: DockerHost, busybox_root: Path, tmp_path: Path
) -> None:
    instance = docker_host.config.instance
    first, second = tmp_path / "version-1", tmp_path / "version-2"
    for root in (first, second):
        shutil.copytree(busybox_root, root, symlinks=True)
        (root / "etc/version").write_text(root.name)
    engine = Engine(docker_host.engine.socket)
    await engine.connect()
    try:
        boxes = [await docker_host.box(image="tiny", rootfs=first) for _ in range(2)]
        assert await engine.images(f"boxd.image={instance}") == [f"boxd-{instance}/tiny:version-1"]
        newer = await docker_host.box(image="tiny", rootfs=second)
        for box, version in ((boxes[0], "version-1"), (newer, "version-2")):
            assert (await docker_host.run(box, "cat", "/etc/version")).out == version
        for box in boxes:
            await docker_host.backend.destroy(box)
        third = (tmp_path / "version-3").resolve()
        shutil.copytree(busybox_root, third, symlinks=True)
        await docker_host.box(image="tiny", rootfs=third)
        left = await engine.images(f"boxd.image={instance}")
        assert sorted(left) == [f"boxd-{instance}/tiny:version-{n}" for n in (2, 3)]
    finally:
        await engine.close()


async def test_images_that_are_gone_leave_the_engine_and_the_first_is_imported_ahead(
    docker_host: DockerHost, busybox_root: Path, tmp_path: Path
) -> None:
    instance, roots = docker_host.config.instance, {}
    for name in ("first", "used", "unused"):
        roots[name] = tmp_path / name
        shutil.copytree(busybox_root, roots[name], symlinks=True)
    engine = Engine(docker_host.engine.socket)
    await engine.connect()
    try:
        await docker_host.box(image="used", rootfs=roots["used"])
        gone = await docker_host.box(image="unused", rootfs=roots["unused"])
        await docker_host.backend.destroy(gone)
        # What a container stands on stays until a later time.
        await docker_host.backend.expect({"first": roots["first"]}, "first")
        left = await engine.images(f"boxd.image={instance}")
        assert sorted(left) == [f"boxd-{instance}/{name}:{name}" for name in ("first", "used")]
    finally:
        await engine.close()


async def test_a_root_that_is_gone_leaves_nothing(docker_host: DockerHost, tmp_path: Path) -> None:
    plan = docker_host.plan(image="absent", rootfs=tmp_path / "absent")
    with pytest.raises(BoxdError, match="absent"):
        await docker_host.backend.create(plan)
    assert docker_host.leftovers() == []


async def test_an_image_is_pulled_once_and_used_as_it_is_here(
    docker_host: DockerHost, busybox_root: Path
) -> None:
    with registry(busybox_root, "test/pulled", "7") as address:
        reference = f"{address}/test/pulled:7"
        plans = [any_image(docker_host, reference) for _ in range(3)]
        await asyncio.gather(*(docker_host.backend.create(plan) for plan in plans))
    plan = any_image(docker_host, reference)  # the registry is gone
    (plan.run_dir / "config.json").write_text(json.dumps({"env": {"PULLED": "no", "A": "b"}}))
    await docker_host.backend.create(plan)
    await docker_host.backend.start(plan.box_id)
    assert (await docker_host.run(plan.box_id, "echo", "up")).out == "up\n"
    config = plan.run_dir / "config.json"
    assert json.loads(config.read_text())["env"] == {"PULLED": "no", "A": "b"}
    assert config.stat().st_mode & 0o077 == 0


async def test_images_that_cannot_be_had_are_told_and_leave_nothing(
    docker_host: DockerHost, busybox_root: Path
) -> None:
    backend = docker_host.backend
    with registry(busybox_root, "test/x", "1", architecture="arm64") as address:
        for reference, error, text in (
            (f"{address}/test/x:2", UnknownImage, "manifest unknown"),
            (f"{address}/test/x:1", UnknownImage, "is for linux/arm64; boxes here are linux/amd64"),
            ("Upper/Case:1", UnknownImage, "not a valid image name: .*lowercase"),
            ("../containers/json", UnknownImage, "not a valid image name"),
            ("x?all=1", UnknownImage, "not a valid image name"),
            (f"boxd-{docker_host.config.instance}/tiny:1", UnknownImage, "catalog name"),
            ("127.0.0.1:9/x:1", Unavailable, "cannot be pulled: .*127.0.0.1:9.*ask the operator"),
        ):
            with pytest.raises(error, match=text):
                await backend.create(any_image(docker_host, reference))
            assert docker_host.leftovers() == []


@pytest.mark.parametrize("step", ["runtime", "init"])
async def test_a_failing_start_leaves_nothing(
    docker_host: DockerHost, tmp_path: Path, step: str
) -> None:
    backend, plan = docker_host.backend, docker_host.plan()
    if step == "init":
        backend = DockerBackend(docker_host.config, init=("/absent/program",))
        await backend.setup()
    await backend.create(plan)
    if step == "runtime":
        plan.runtime.rmdir()
    with pytest.raises(BoxdError, match="does not start"):
        await backend.start(plan.box_id)
    assert networks(docker_host) == []
    await backend.destroy(plan.box_id)
    assert docker_host.leftovers() == []
    if backend is not docker_host.backend:
        await backend.close()


@pytest.mark.parametrize("ends", ["before", "after"])
async def test_a_first_process_that_ends_around_its_network(
    docker_host: DockerHost, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    backend = DockerBackend(docker_host.config, init=("/bin/true",) if ends == "before" else SLEEP)
    make = Network.ensure

    async def ensure(
        network: Network, box_id: str, slot: int, *, egress: str, pid: int | None = None
    ) -> None:
        assert pid is not None
        if ends == "after":
            await make(network, box_id, slot, egress=egress, pid=pid)
            os.kill(pid, signal.SIGKILL)
            await until(lambda: ended(pid))
        await until(lambda: not Path(f"/proc/{pid}/ns/net").exists())
        if ends == "before":
            await make(network, box_id, slot, egress=egress, pid=pid)

    monkeypatch.setattr(Network, "ensure", ensure)
    await backend.setup()
    try:
        plan = docker_host.plan()
        await backend.create(plan)
        with pytest.raises(BoxdError, match="does not start: its first process ended"):
            await backend.start(plan.box_id)
        assert networks(docker_host) == []
    finally:
        await backend.close()


async def test_a_cancelled_create_leaves_nothing(docker_host: DockerHost) -> None:
    first, plan, backend = docker_host.plan(), docker_host.plan(), docker_host.backend
    await backend.create(first)  # the image is there
    creating = asyncio.create_task(backend.create(plan))
    await at_once(docker_host.names.paths(plan.box_id).record.exists)
    creating.cancel()
    with pytest.raises(asyncio.CancelledError):
        await creating
    assert [one.box_id for one in await backend.list()] == [first.box_id]
    await backend.create(docker_host.plan(box_id=plan.box_id))
    await backend.start(plan.box_id)
    assert await state_of(docker_host, plan.box_id)


async def test_a_cancelled_start_leaves_nothing_running(docker_host: DockerHost) -> None:
    plan, backend = docker_host.plan(), docker_host.backend
    await backend.create(plan)
    starting = asyncio.create_task(backend.start(plan.box_id))
    shims = docker_host.engine.directory / "exec/containerd/daemon"
    await at_once(lambda: list(shims.glob(f"*/moby/{docker_host.container(plan.box_id)}")))
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert networks(docker_host) == []
    assert not await state_of(docker_host, plan.box_id)
    await backend.start(plan.box_id)
    assert await state_of(docker_host, plan.box_id)


async def test_another_object_adopts_what_lives(docker_host: DockerHost) -> None:
    running, stopped = await docker_host.box(), docker_host.plan()
    await docker_host.backend.create(stopped)
    before = docker_host.pid(running)
    heir = DockerBackend(docker_host.config, init=STAND_IN)
    await heir.setup()
    try:
        states = {box.box_id: box.running for box in await heir.list()}
        assert states == {running: True, stopped.box_id: False}
        await heir.start(running)
        assert docker_host.pid(running) == before
        third = docker_host.plan()
        await heir.create(third)
        addresses = {docker_host.address(one) for one in (running, stopped.box_id, third.box_id)}
        assert len(addresses) == 3
        for box in (running, stopped.box_id, third.box_id):
            await heir.destroy(box)
        assert docker_host.leftovers() == []
    finally:
        await heir.close()


async def test_a_box_that_ended_by_itself_starts_again_with_a_new_network(
    docker_host: DockerHost,
) -> None:
    box = await docker_host.box()
    os.kill(docker_host.pid(box), signal.SIGKILL)
    await until(lambda: docker_host.pid(box) == 0)
    assert not await state_of(docker_host, box)
    await docker_host.backend.start(box)
    assert (await docker_host.run(box, "ip", "addr", "show", "eth0")).status == 0
    inside = Path(f"/proc/{docker_host.pid(box)}/ns/net")
    assert docker_host.names.netns_path(box).samefile(inside)


async def test_a_lost_network_is_made_again(docker_host: DockerHost) -> None:
    box = await docker_host.box()
    await run("ip", "link", "del", next(x.split()[1] for x in networks(docker_host) if "link" in x))
    await docker_host.backend.start(box)
    assert (await docker_host.run(box, "ip", "addr", "show", "eth0")).status == 0


async def test_a_container_that_was_removed_by_hand_is_told(docker_host: DockerHost) -> None:
    box = await docker_host.box()
    engine = Engine(docker_host.engine.socket)
    await engine.connect()
    try:
        await engine.remove(docker_host.container(box))
    finally:
        await engine.close()
    assert not await state_of(docker_host, box)
    with pytest.raises(Unavailable, match="missing in the Docker engine"):
        await docker_host.backend.start(box)
    await docker_host.backend.stop(box)
    await docker_host.backend.destroy(box)
    assert docker_host.leftovers() == []


async def test_a_foreign_container_of_the_same_name_is_left_alone(
    docker_host: DockerHost, busybox_root: Path
) -> None:
    docker_host.engine.add_image(busybox_root, "test/foreign", "1")
    plan = docker_host.plan()
    name = f"boxd-{docker_host.config.instance}-{plan.box_id}"
    engine = Engine(docker_host.engine.socket)
    await engine.connect()
    try:
        await engine.create(name, {"Image": "test/foreign:1", "Cmd": ["/bin/true"]})
        with pytest.raises(Conflict, match="is not ours"):
            await docker_host.backend.create(plan)
        assert await engine.container(name) is not None
        await engine.remove(name)
    finally:
        await engine.close()


@pytest.mark.timeout(180)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
async def test_an_engine_that_is_started_anew_has_its_boxes_again(
    tmp_path: Path, busybox_root: Path, number: signal.Signals
) -> None:
    with open_dockerd() as engine:
        async with open_docker_host(engine, tmp_path / "state", busybox_root) as host:
            box = await host.box()
            await host.run(box, "sh", "-c", "echo kept > /root/file")
            await asyncio.to_thread(engine.end, number)
            with pytest.raises(Unavailable, match="cannot be reached"):
                await host.backend.list()
            with pytest.raises(Unavailable, match="cannot be reached"):
                await host.backend.start(box)
            await asyncio.to_thread(engine.start)
            assert not await state_of(host, box)
            await host.backend.start(box)
            assert (await host.run(box, "cat", "/root/file")).out == "kept\n"
            assert (await host.run(box, "ip", "addr", "show", "eth0")).status == 0
