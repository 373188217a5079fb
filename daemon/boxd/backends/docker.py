"""Boxes as containers of a Docker engine on this host.

The engine keeps the processes, the disk and the configuration of a box; ours are its network with
the fence, and a record of both. A container has no network of the engine's: when its init has
started, our link is put into its namespace, behind the fence that was loaded before. Until then the
box reaches nothing, and `start` has not returned.

A box's truth is in the engine and on the host: containers are found by their labels, so a new
object on the same state directory adopts what an earlier one left. When the engine ends, the boxes
end with it unless it runs with live-restore; they start again from their disks.

The engine cannot write a container's memory to the disk and bring it back with all that a box
holds, so boxes of this backend are not suspended.

*Measured* on 2 cores beside other work, Docker 20.10, busybox: create 25-40 ms, start 370 ms.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from box_guest import protocol
from boxd.backends import (
    bundle,
    cgroups,
    docker_config,
    drivemount,
    hostshares,
    inside,
    links,
    processes,
    subnets,
)
from boxd.backends.boxlocks import BoxLocks, settled, to_the_end
from boxd.backends.docker_engine import Engine
from boxd.backends.docker_images import EngineImages
from boxd.backends.hostfiles import memory_for_boxes
from boxd.backends.hostnames import HostNames
from boxd.backends.interface import BackendBox, BoxStats, Capabilities
from boxd.backends.network import RESOLV_CONF, Network
from boxd.backends.records import Record, Records
from boxd.backends.run import run
from boxd.backends.trees import remove_tree
from boxd.backends.without_memory import WithoutMemory
from boxd.errors import BoxdError, Conflict, Unavailable

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncIterator, Mapping
    from pathlib import Path

    from boxd.backends.docker_images import EngineImage
    from boxd.backends.interface import BoxPlan
    from boxd.config import Config
    from boxd.errors import Unsupported

STOP_GRACE = 5.0
"""Seconds between the request to end and the end by force; the engine counts whole ones."""
PROGRAMS = {"ip": "-V", "nft": "--version", "tar": "--version"}
WHY_NO_SUSPEND = (
    "boxes of the docker backend cannot be suspended; their disk is kept when they stop "
    "(the runc backend suspends boxes with their memory)"
)
_LIVE = {"running", "paused"}
"""States of containers whose processes live."""


class DockerBackend(WithoutMemory):
    """Boxes in the engine at `config.docker_socket`.

    Critical sections: the calls for one box are serialised by a lock per box, so that no step of
    one interleaves with a step of another. `_slots` and `_locks` change only between two awaits.
    """

    name = "docker"
    why_no_memory = WHY_NO_SUSPEND

    def __init__(
        self,
        config: Config,
        *,
        init: tuple[str, ...] = bundle.INIT,
        stop_grace: float = STOP_GRACE,
        resolv_conf: Path = RESOLV_CONF,
    ) -> None:
        """As of the runc backend."""
        self._names = HostNames(config.instance, config.state_dir.resolve())
        self._records = Records(self._names)
        self._network = Network(self._names, resolv_conf)
        self._engine = Engine(config.docker_socket)
        self._images = EngineImages(self._engine, config.instance)
        self._init = init
        self._stop_grace = stop_grace
        self._facts: docker_config.EngineFacts | None = None
        self._layout: cgroups.Layout | None = None
        self._slots: dict[str, int] = {}
        self._locks = BoxLocks()

    async def setup(self) -> None:
        """Reaches the engine, reserves the network, loads the fence, adopts boxes that live."""
        if os.geteuid() != 0:
            raise Unavailable("boxes need root; start the service as root")
        for program, option in PROGRAMS.items():
            await run(program, option)
        self._layout = cgroups.detect()
        info = await self._engine.connect()
        own_parent = info.cgroup_driver == "cgroupfs"  # systemd wants a slice of its own making
        self._facts = docker_config.EngineFacts(
            nofile=resource.getrlimit(resource.RLIMIT_NOFILE)[1],
            cgroup_parent=self._names.cgroup_parent if own_parent else None,
        )
        if own_parent:
            cgroups.prepare_parent(self._layout, self._names.cgroup_parent, memory_for_boxes())
        self._names.boxes_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        hostshares.lift_and_tell()
        await self._network.setup()
        self._slots = {r.plan.box_id: r.slot for r in self._records.all()}
        alive = {box.box_id for box in await self.list() if box.running}
        for record in self._records.all():
            if record.plan.box_id in alive:
                await self._connect(record)
            else:  # it may have died with the engine
                await self._network.remove(record.plan.box_id, record.slot)

    async def close(self) -> None:
        """Gives the network back if no box uses it; boxes go on."""
        await self._engine.close()
        await self._network.release()
        if self._layout is None:
            return
        if any(self._names.netns_path(r.plan.box_id).exists() for r in self._records.all()):
            return
        await self._network.close()
        await cgroups.remove(self._layout, self._names.cgroup_parent)
        self._layout = None

    def capabilities(self) -> Capabilities:
        """Any image; no memory, no snapshots, and disks without a cap."""
        return Capabilities(
            suspend=False,
            fork=False,
            snapshot=False,
            disk_limit=False,
            any_image=True,
            why_no_suspend=WHY_NO_SUSPEND,
            memory_ceiling=self._facts is None or self._facts.cgroup_parent is not None,
        )

    async def expect(self, roots: Mapping[str, Path], first: str) -> None:
        """Imports the first one; removes from the engine what is of no image any more."""
        await self._images.keep(roots)
        if first in roots:
            await self._images.of_root(first, roots[first])

    async def create(self, plan: BoxPlan) -> None:
        """Makes record and container, with its image if the engine has none. What is there stays.

        The network comes with `start`: it needs the namespace of a living init.
        """
        async with self._locks.alone(plan.box_id):
            known = self._records.find(plan.box_id) is not None
            slot = self._slots.get(plan.box_id)
            if slot is None:
                slot = subnets.free_slot(set(self._slots.values()))
                self._slots[plan.box_id] = slot
            paths = self._names.paths(plan.box_id)
            try:
                paths.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
                await self._records.put(Record(slot, plan))
                if await self._find(plan.box_id) is None:
                    await self._make(plan)
            except BaseException:
                if not known:
                    await to_the_end(self._remove(plan.box_id))
                raise

    async def start(self, box_id: str) -> None:
        """Starts the init and gives the box its network. A box that has both is left alone."""
        async with self._locks.alone(box_id):
            record = self._records.get(box_id)
            container = await self._find(box_id)
            if container is None:
                raise Unavailable(
                    "the container of the box is gone from the Docker engine, and its disk with "
                    "it; remove the box"
                )
            try:
                if not container["State"]["Running"]:
                    await settled(self._engine.start(self._container(box_id)))
                await self._connect(record)
            except Conflict as error:
                await to_the_end(self._halt(record, 0))
                raise BoxdError("the box does not start: its first process ended") from error
            except BaseException:
                await to_the_end(self._halt(record, 0))
                raise

    async def stop(self, box_id: str) -> None:
        """Ends all processes, then removes the network; the container stays with its disk."""
        async with self._locks.alone(box_id):
            await self._halt(self._records.get(box_id), self._stop_grace)

    async def destroy(self, box_id: str) -> None:
        """Removes the box at once, whatever runs in it."""
        async with self._locks.alone(box_id):
            await self._remove(box_id)

    async def attach_drive(self, box_id: str, source: Path) -> None:
        """Attaches the mount at `source`; nothing to do when that very mount is there already."""
        async with self._locks.alone(box_id):
            self._records.get(box_id)
            async with self._init_of(box_id) as (pid, pidfd):
                await drivemount.attach(pid, pidfd, source)

    async def detach_drive(self, box_id: str) -> None:
        """Takes the drive away."""
        async with self._locks.alone(box_id):
            self._records.get(box_id)
            container = await self._find(box_id)
            if container is None or not container["State"]["Running"]:
                return
            async with self._init_of(box_id) as (_, pidfd):
                await drivemount.detach(pidfd)

    async def list(self) -> list[BackendBox]:
        """Every box with a record or with a container of this installation."""
        found = {
            record.plan.box_id: BackendBox(record.plan.box_id, False)
            for record in self._records.all()
        }
        label = f"{docker_config.INSTALLATION}={self._names.instance}"
        for container in await self._engine.containers(label):
            box_id = container["Labels"].get(docker_config.BOX, "")
            if f"/{self._container(box_id)}" in container["Names"]:
                state = container["State"]
                found[box_id] = BackendBox(box_id, state in _LIVE, frozen=state == "paused")
        return [found[box_id] for box_id in sorted(found)]

    async def thaw(self, box_id: str) -> None:
        """Has a container run on that somebody paused; Unsupported when none is paused."""
        async with self._locks.alone(box_id):
            container = await self._find(box_id)
            if container is None or not container["State"].get("Paused"):
                raise self._unable(box_id)
            await self._engine.unpause(self._container(box_id))

    async def tcp_socket(self, box_id: str, family: int) -> socket.socket | None:
        """See Backend."""
        return await inside.tcp_socket(self._names, box_id, family)

    async def stats(self, box_id: str) -> BoxStats:
        """From the cgroup; zeros but for the disk when the box does not run."""
        record = self._records.get(box_id)
        container = await self._find(box_id, size=True) or {}
        size = int(container.get("SizeRw") or 0)
        try:
            async with self._init_of(box_id) as (pid, _):
                cgroup = processes.cgroup_with(pid, container["Id"])
        except Conflict:
            return BoxStats(0.0, 0, size, 0)
        used = cgroups.usage(self._cgroups, cgroup)
        received, sent = links.traffic(self._names.link(record.slot))
        return BoxStats(used.cpu_s, used.memory_bytes, size, used.pids, received, sent)

    def _unable(self, box_id: str) -> Unsupported:
        self._records.get(box_id)
        return super()._unable(box_id)

    # Steps of one box; its lock is held.

    async def _make(self, plan: BoxPlan) -> None:
        image = await self._image(plan)
        _tell_agent(plan, docker_config.session_environment(image.environment))
        body = docker_config.container(
            plan,
            self._names.instance,
            image.id,
            image.environment,
            self._engine_facts,
            self._init,
        )
        await settled(self._engine.create(self._container(plan.box_id), body))

    async def _image(self, plan: BoxPlan) -> EngineImage:
        if plan.rootfs is None:
            return await self._images.of_reference(plan.image)
        return await self._images.of_root(plan.image, plan.rootfs)

    async def _connect(self, record: Record) -> None:
        box_id = record.plan.box_id
        async with self._init_of(box_id) as (pid, _):
            await self._network.ensure(box_id, record.slot, egress=record.plan.egress, pid=pid)

    async def _halt(self, record: Record, grace: float) -> None:
        """Ends the processes, and takes away what a box that does not run does not need."""
        box_id = record.plan.box_id
        if await self._find(box_id) is not None:
            await self._engine.stop(self._container(box_id), grace)
        await self._network.remove(box_id, record.slot)

    async def _remove(self, box_id: str) -> None:
        record = self._records.find(box_id)
        if await self._find(box_id) is not None:
            await self._engine.remove(self._container(box_id))
        if record is not None:
            await self._network.remove(box_id, record.slot)
        await asyncio.to_thread(remove_tree, self._names.paths(box_id).directory)
        self._slots.pop(box_id, None)

    # Helpers.

    def _container(self, box_id: str) -> str:
        """The name of a box's container."""
        return f"boxd-{self._names.instance}-{box_id}"

    async def _find(self, box_id: str, *, size: bool = False) -> dict[str, Any] | None:
        """The box's container. Raises Conflict when its name is a foreign one's."""
        name = self._container(box_id)
        found = await self._engine.container(name, size=size)
        if found is None:
            return None
        labels = found["Config"].get("Labels") or {}
        wanted = {docker_config.INSTALLATION: self._names.instance, docker_config.BOX: box_id}
        if any(labels.get(label) != value for label, value in wanted.items()):
            raise Conflict(f"container {name} of the Docker engine is not ours; remove it there")
        return found

    @asynccontextmanager
    async def _init_of(self, box_id: str) -> AsyncIterator[tuple[int, int]]:
        """Pid and pidfd of a box's init; Conflict when it does not run.

        The descriptor is taken first and the process looked at afterwards, so a pid that has been
        given to another process is never taken for the box.
        """
        container = await self._find(box_id)
        if container is None or not container["State"]["Running"]:
            raise Conflict("the box does not run")
        with processes.member(int(container["State"]["Pid"]), container["Id"]) as pidfd:
            yield int(container["State"]["Pid"]), pidfd

    @property
    def _cgroups(self) -> cgroups.Layout:
        if self._layout is None:
            raise Unavailable("the backend is not set up")
        return self._layout

    @property
    def _engine_facts(self) -> docker_config.EngineFacts:
        if self._facts is None:
            raise Unavailable("the backend is not set up")
        return self._facts


def _tell_agent(plan: BoxPlan, environment: dict[str, str]) -> None:
    """Adds an image's environment to the agent's configuration, where there is one."""
    path = plan.run_dir / protocol.AGENT_CONFIG
    if not environment or not path.exists():
        return
    config: dict[str, Any] = json.loads(path.read_text())
    config["env"] = {**environment, **config.get("env", {})}
    new = path.with_name(f"{path.name}.new")
    new.unlink(missing_ok=True)
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump(config, file)
    new.replace(path)
