"""Boxes as containers of a Docker engine on this host.

The engine holds the processes, the disk and the configuration of a box. The service holds its
network with the fence, and a record. Containers have no network of the engine. The service loads
the fence first. When the init has started, the service adds a link to the init's namespace, behind
the fence. Until then the box reaches nothing, and `start` has not returned.

The state of a box is in the engine and on the host. The backend finds containers by their labels,
so a new object on the same state directory adopts the boxes of an earlier one. When the engine
ends, the boxes end too, unless the engine runs with live-restore. Ended boxes start again from
their disks.

The engine cannot save and restore the memory of a container with everything that a box holds. So
this backend does not suspend boxes.

*Measured* on 2 cores beside other work, Docker 20.10, busybox: create 25-40 ms, start 370 ms.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from box_guest import protocol
from boxd.backends.box_locks import BoxLocks
from boxd.backends.docker import config as docker_config
from boxd.backends.docker.engine import Engine
from boxd.backends.docker.images import EngineImages
from boxd.backends.docker.without_memory import WithoutMemory
from boxd.backends.host import cgroups, mounts, processes, shares
from boxd.backends.host.files import memory_for_boxes
from boxd.backends.host.names import HostNames
from boxd.backends.host.run import run
from boxd.backends.host.trees import remove_tree
from boxd.backends.interface import BackendBox, BoxStats, Capabilities, InitState
from boxd.backends.network import inside, links, subnets
from boxd.backends.network.host_network import RESOLV_CONF, Network
from boxd.backends.oci import bundle, drive_mount
from boxd.backends.records import Record, Records
from boxd.cancellation import settled, to_the_end
from boxd.errors import BoxdError, Conflict, Unavailable, Unsupported

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncIterator, Collection, Mapping

    from boxd.backends.docker.images import EngineImage
    from boxd.backends.interface import BoxPlan
    from boxd.config import Config

STOP_GRACE = 5.0
"""Whole seconds that processes get to exit before they are killed."""
ENDING_S = 1.0
"""Time in seconds for a process without namespaces to end."""
PROGRAMS = {"ip": "-V", "nft": "--version", "tar": "--version"}
WHY_NO_SUSPEND = (
    "the docker backend cannot suspend boxes; their disk is kept when they stop "
    "(the runc backend suspends boxes with their memory)"
)
_LIVE = {"running", "paused"}
"""States of containers with live processes."""


class DockerBackend(WithoutMemory):
    """Boxes in the engine at `config.docker_socket`.

    Critical sections: a lock per box serialises the calls for that box, so that their steps do not
    interleave. `_slots`, `_pids` and `_locks` change only between two awaits.
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
        """The parameters are those of `RuncBackend`."""
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
        self._pids: dict[str, int] = {}
        self._locks = BoxLocks()

    async def setup(self) -> None:
        """Connect to the engine, reserve the network, load the fence, and adopt live boxes."""
        if os.geteuid() != 0:
            raise Unavailable("boxes need root; start the service as root")
        for program, option in PROGRAMS.items():
            await run(program, option)
        self._layout = cgroups.detect()
        info = await self._engine.connect()
        own_parent = info.cgroup_driver == "cgroupfs"  # systemd creates its own slice
        self._facts = docker_config.EngineFacts(
            nofile=resource.getrlimit(resource.RLIMIT_NOFILE)[1],
            cgroup_parent=self._names.cgroup_parent if own_parent else None,
        )
        if own_parent:
            cgroups.prepare_parent(self._layout, self._names.cgroup_parent, memory_for_boxes())
        self._names.boxes_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        shares.lift_and_log()
        await self._network.setup()
        self._slots = {r.plan.box_id: r.slot for r in self._records.all()}
        alive = {box.box_id for box in await self.list() if box.running}
        for record in self._records.all():
            if record.plan.box_id in alive:
                await self._connect(record)
            else:  # the box may have ended with the engine
                await self._network.remove(record.plan.box_id, record.slot)

    async def close(self) -> None:
        """Release the network if no box uses it. Boxes continue to run."""
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
        """Return the capabilities: any image, no memory, no snapshots, no disk limit."""
        return Capabilities(
            suspend=False,
            fork=False,
            snapshot=False,
            disk_limit=False,
            any_image=True,
            why_no_suspend=WHY_NO_SUSPEND,
            memory_ceiling=self._facts is None or self._facts.cgroup_parent is not None,
        )

    async def require_kind(self, runtime: str, *, containers: bool) -> None:
        """Raise Unsupported if the engine does not know the runtime. No box runs containers."""
        if containers:
            raise Unsupported(
                "boxes of the docker backend have no user namespace of their own, so they get no "
                "rights to run containers: choose another flavor"
            )
        if not runtime:
            return
        present = await self._engine.runtimes()
        if runtime not in present:
            raise Unsupported(
                f"the Docker engine of this host has no runtime {runtime!r} (it has: "
                f"{', '.join(present)}): choose another flavor. The operator adds it to `runtimes` "
                "in the engine's daemon.json, and reloads the engine"
            )

    async def expect(self, roots: Mapping[str, Path], first: str) -> None:
        """Import the root of `first`, and remove imported images of other roots from the engine."""
        await self._images.keep(roots)
        if first in roots:
            await self._images.of_root(first, roots[first])

    async def create(self, plan: BoxPlan) -> None:
        """Create record and container; pull or import its image if needed. Existing parts stay.

        `start` creates the network, because it needs the namespace of a live init.
        """
        async with self._locks.alone(plan.box_id):
            has_record = self._records.find(plan.box_id) is not None
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
                if not has_record:
                    await to_the_end(self._remove(plan.box_id))
                raise

    async def start(self, box_id: str) -> None:
        """Start the init and create the box's network. Existing parts are not changed."""
        async with self._locks.alone(box_id):
            record = self._records.get(box_id)
            container = await self._find(box_id)
            if container is None:
                raise Unavailable(
                    "the container of the box is missing in the Docker engine, and so is its disk; "
                    "remove the box"
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
        """End all processes, then remove the network. The container stays, with its disk.

        A stopped init cannot end by itself, so it gets no grace period.
        """
        async with self._locks.alone(box_id):
            stopped = (await self.init_state(box_id)).stopped
            await self._halt(self._records.get(box_id), 0 if stopped else self._stop_grace)

    async def init_state(self, box_id: str) -> InitState:
        """Return the state of the init's main thread from /proc."""
        with suppress(Conflict):
            async with self._init_of(box_id) as (pid, _):
                return processes.init_state(pid)
        return InitState()

    async def suspect_inits(self, box_ids: Collection[str]) -> set[str]:
        """Check the pids that the engine reported last, without a call to the engine."""
        pids = {box_id: self._pids.get(box_id) for box_id in box_ids}
        return await asyncio.to_thread(processes.suspects, pids)

    async def destroy(self, box_id: str) -> None:
        """Remove the box at once, even if it runs."""
        async with self._locks.alone(box_id):
            await self._remove(box_id)

    async def attach_drive(self, box_id: str, source: Path) -> None:
        """Mount the drive at `source` in the box. Does nothing if it is mounted there already."""
        async with self._locks.alone(box_id):
            plan = self._records.get(box_id).plan
            async with self._init_of(box_id) as (pid, pidfd):
                if not _has_mounts_of_box(pid):
                    raise Unsupported(
                        f"a box with the runtime {plan.oci_runtime!r} cannot have /wrk: the host "
                        "cannot mount anything in it later. Use the drive over HTTP, or a flavor "
                        "with another runtime"
                    )
                await drive_mount.attach(pid, pidfd, source)

    async def detach_drive(self, box_id: str) -> None:
        """Unmount the drive in the box."""
        async with self._locks.alone(box_id):
            self._records.get(box_id)
            container = await self._find(box_id)
            if container is None or not container["State"]["Running"]:
                return
            async with self._init_of(box_id) as (pid, pidfd):
                if _has_mounts_of_box(pid):
                    await drive_mount.detach(pid, pidfd)

    async def list(self) -> list[BackendBox]:
        """Return every box with a record or with a container of this installation."""
        boxes = {
            record.plan.box_id: BackendBox(record.plan.box_id, False)
            for record in self._records.all()
        }
        label = f"{docker_config.INSTALLATION}={self._names.instance}"
        for container in await self._engine.containers(label):
            box_id = container["Labels"].get(docker_config.BOX, "")
            if f"/{self._container(box_id)}" in container["Names"]:
                state = container["State"]
                boxes[box_id] = BackendBox(box_id, state in _LIVE, frozen=state == "paused")
        return [boxes[box_id] for box_id in sorted(boxes)]

    async def thaw(self, box_id: str) -> None:
        """Unpause a container that another client has paused.

        Raises Unsupported if it is not paused.
        """
        async with self._locks.alone(box_id):
            container = await self._find(box_id)
            if container is None or not container["State"].get("Paused"):
                raise self._unable(box_id)
            await self._engine.unpause(self._container(box_id))

    async def tcp_socket(self, box_id: str, family: int) -> socket.socket | None:
        """Return a TCP socket in the box's network namespace."""
        return await inside.tcp_socket(self._names, box_id, family)

    async def stats(self, box_id: str) -> BoxStats:
        """Return the figures of the cgroup. A stopped box has only those of the disk."""
        record = self._records.get(box_id)
        container = await self._find(box_id, size=True) or {}
        size = int(container.get("SizeRw") or 0)
        try:
            async with self._init_of(box_id) as (pid, _):
                cgroup = processes.cgroup_with(pid, container["Id"])
        except Conflict:
            return BoxStats(0.0, 0, size, 0)
        used = cgroups.usage(self._cgroups, cgroup)
        rx_bytes, tx_bytes = links.traffic(self._names.link(record.slot))
        return BoxStats(
            cpu_s=used.cpu_s,
            memory_bytes=used.memory_bytes,
            disk_bytes=size,
            pids=used.pids,
            net_rx_bytes=rx_bytes,
            net_tx_bytes=tx_bytes,
            oom_kills=used.oom_kills,
        )

    async def oom_kills(self, box_id: str) -> int:
        """Return the count of the container's cgroup."""
        container = await self._find(box_id) or {}
        try:
            async with self._init_of(box_id) as (pid, _):
                cgroup = processes.cgroup_with(pid, container["Id"])
        except Conflict:
            return 0
        return cgroups.oom_kills(self._cgroups, cgroup)

    def _unable(self, box_id: str) -> Unsupported:
        self._records.get(box_id)
        return super()._unable(box_id)

    # Steps of one box. The caller holds its lock.

    async def _make(self, plan: BoxPlan) -> None:
        image = await self._image(plan)
        _configure_agent(plan, docker_config.session_environment(image.environment))
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
        async with self._init_of(box_id) as (pid, pidfd):
            try:
                await self._network.ensure(box_id, record.slot, egress=record.plan.egress, pid=pid)
            except (BoxdError, OSError) as error:
                # The network is made through /proc/PID/ns. An ending process loses its namespaces
                # a moment before its pidfd reports the end.
                if await processes.ends_within(pidfd, ENDING_S):
                    raise Conflict("the first process of the box ended") from error
                raise
            if processes.has_ended(pidfd):
                raise Conflict("the first process of the box ended")

    async def _halt(self, record: Record, grace: float) -> None:
        """End the processes, and remove objects that a stopped box does not need."""
        box_id = record.plan.box_id
        if await self._find(box_id) is not None:
            await self._kill_stopped(box_id)
            await self._engine.stop(self._container(box_id), grace)
        self._pids.pop(box_id, None)
        await self._network.remove(box_id, record.slot)

    async def _remove(self, box_id: str) -> None:
        record = self._records.find(box_id)
        if await self._find(box_id) is not None:
            await self._kill_stopped(box_id)
            await self._engine.remove(self._container(box_id))
        if record is not None:
            await self._network.remove(box_id, record.slot)
        await asyncio.to_thread(remove_tree, self._names.paths(box_id).directory)
        self._slots.pop(box_id, None)

    async def _kill_stopped(self, box_id: str) -> None:
        """Kill an init that a signal has stopped.

        The engine asks the runtime to kill it, and a runtime like gVisor asks the init itself.
        """
        with suppress(Conflict, ProcessLookupError):
            async with self._init_of(box_id) as (pid, pidfd):
                if processes.init_state(pid).stopped:
                    signal.pidfd_send_signal(pidfd, signal.SIGKILL)

    # Helpers.

    def _container(self, box_id: str) -> str:
        """Return the name of a box's container."""
        return f"boxd-{self._names.instance}-{box_id}"

    async def _find(self, box_id: str, *, size: bool = False) -> dict[str, Any] | None:
        """Return the box's container.

        Raises Conflict if another program's container has its name.
        """
        name = self._container(box_id)
        container = await self._engine.container(name, size=size)
        if container is None:
            return None
        labels = container["Config"].get("Labels") or {}
        own = {docker_config.INSTALLATION: self._names.instance, docker_config.BOX: box_id}
        if any(labels.get(label) != value for label, value in own.items()):
            raise Conflict(f"container {name} of the Docker engine is not ours; remove it there")
        return container

    @asynccontextmanager
    async def _init_of(self, box_id: str) -> AsyncIterator[tuple[int, int]]:
        """Yield pid and pidfd of a box's init. Raises Conflict if it is not running.

        The method opens the descriptor before it checks the process. So it never mistakes a reused
        pid for the box.
        """
        container = await self._find(box_id)
        if container is None or not container["State"]["Running"]:
            raise Conflict("the box is not running")
        pid = int(container["State"]["Pid"])
        with processes.member(pid, container["Id"]) as pidfd:
            self._pids[box_id] = pid
            yield pid, pidfd

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


def _has_mounts_of_box(pid: int) -> bool:
    """Return whether a process of the host has the mounts of its box.

    The first process of a box of gVisor or Kata is its kernel, which has others.
    """
    table = Path(f"/proc/{pid}/mountinfo")
    return mounts.device_at(table, bundle.RUN_DIR) is not None


def _configure_agent(plan: BoxPlan, environment: dict[str, str]) -> None:
    """Add an image's environment to the agent's configuration file, if there is one."""
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
