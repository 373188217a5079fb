"""Assembly of one box from its parts: run directory, backend, tunnel and drive.

This module knows neither states nor rows. The lifecycle calls it under the box's lock. Every step
is idempotent, so `destroy` undoes any prefix of `build` and `start`.
"""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING

from boxd.backends.interface import BoxPlan
from boxd.errors import AgentLost, BoxdError, RootHeld, Unavailable, UnknownImage

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from boxd.backends.interface import Backend, BackendBox, InitState
    from boxd.boxes.state.interface import Catalog, DriveAttacher, RunDirectories, Tunnels
    from boxd.model.box import Box
    from boxd.tunnel.channel import Tunnel

HELLO_TIMEOUT = 30.0
"""Seconds within which a started agent must send hello."""
RESUME_TIMEOUT = 50.0
"""Seconds within which a resumed agent must send hello. After that the memory is lost, so this is
longer than HELLO_TIMEOUT. A start from the disk may follow; both times together are below the 90 s
that service managers wait for a service to stop."""
COPY_TIMEOUT = 10.0
"""Seconds within which the agent of a copied template must send hello. After that the box boots."""
PROBE_TIMEOUT = 2.0
"""Seconds to wait for a missing tunnel before asking the backend whether the box still runs."""
STOPPED_S = 3.0
"""An agent counts as lost if the kernel shows it as stopped for this many seconds without a context
switch. A slow machine does not cause this, and a debugger in use lets the agent run."""
STOPPED_LOOK_S = 0.2
SILENT_S = 10.0
"""An agent without a tunnel counts as lost if it sleeps for this many seconds without running. A
healthy agent dials at least every second, and whenever the daemon creates its socket again."""


class Boot(Enum):
    """From what a new box starts. Neither a template nor a prepared box has a drive."""

    DISK = "disk"
    TEMPLATE = "template"
    """The memory of a template, on the disk."""
    PREPARED = "prepared"
    """A frozen box."""


@dataclass(frozen=True, slots=True)
class Places:
    """What all boxes of this installation share with the daemon."""

    run_directories: RunDirectories
    runtime: Path
    """The guest runtime."""
    daemon_key: str
    """The daemon's public key."""


class Assembly:
    """Builds, starts, stops and destroys boxes. Holds no state of its own.

    `drives` is None if drives are disabled. `new_identity` returns a new key pair: the private key
    in OpenSSH format and the public key as one line.
    """

    def __init__(
        self,
        *,
        backend: Backend,
        tunnels: Tunnels,
        drives: DriveAttacher | None,
        catalog: Catalog,
        places: Places,
        new_identity: Callable[[], tuple[bytes, str]],
    ) -> None:
        self.backend = backend
        self.tunnels = tunnels
        self.drives = drives
        self.new_identity = new_identity
        self._catalog = catalog
        self._places = places

    @property
    def runtime(self) -> str:
        """The path of the guest runtime of this installation. Another version has another path."""
        return str(self._places.runtime.resolve())

    def root(self, image: str) -> Path | None:
        """Return the unpacked root of an image, or None if only the backend knows the image.

        Raises UnknownImage, or Unavailable if an image of the catalog is not built.
        """
        try:
            return self._catalog.rootfs(image)
        except UnknownImage:
            if not self.backend.capabilities().any_image:
                raise
            return None

    async def build(self, box: Box, private_key: bytes, *, snapshot_id: str = "") -> None:
        """Create the box without starting it, from a snapshot if one is given.

        Raises UnknownImage, Unavailable or NotFound.
        """
        await self._write_identity(box, private_key)
        plan = BoxPlan(
            box_id=box.id,
            hostname=box.name,
            image=box.image,
            rootfs=self.root(box.image),
            runtime=self._places.runtime,
            run_dir=self._places.run_directories.path(box.id),
            cpus=box.cpus,
            mem_mb=box.mem_mb,
            pids=box.pids,
            disk_mb=box.disk_mb,
            egress=box.egress,
            template=not box.owner,
            oci_runtime=box.runtime,
            containers=box.containers,
        )
        if snapshot_id:
            await self.backend.clone(plan, snapshot_id)
        else:
            await self.backend.create(plan)

    async def claim(self, box: Box, private_key: bytes) -> None:
        """Give a prepared box, which is frozen, the name and identity of `box`."""
        await self._write_identity(box, private_key)
        await self.backend.rename(box.id, box.name)

    async def is_lost(self, box: Box) -> bool:
        """Return whether no part of the box is on this host, as after a restore on another one."""
        return not await self._places.run_directories.exists(box.id)

    async def renew_identity(self, box: Box) -> str:
        """Write a new host key for a box that does not run. Returns the public key.

        The agent loads it when the box runs. Two boxes that start from the same memory must not
        have the same identity.
        """
        private_key, host_key = self.new_identity()
        await self._write_identity(box, private_key)
        return host_key

    async def _write_identity(self, box: Box, private_key: bytes) -> None:
        config: dict[str, object] = {
            "box_id": box.id,
            "name": box.name,
            "hostname": box.name,
            "daemon_key": self._places.daemon_key,
            "env": {},
        }
        if box.relay_key:
            config["relay_key"] = box.relay_key
        if box.containers:
            config["containers"] = True
        await self._places.run_directories.write(box.id, json.dumps(config), private_key)

    async def start(self, box: Box, boot: Boot = Boot.DISK) -> None:
        """Start the box. Returns when its agent has sent hello and its drive is attached.

        The daemon listens for the tunnel and mounts the volume in parallel, and attaches the drive
        while the agent starts.
        """
        await self.listen(box)
        async with asyncio.TaskGroup() as group:
            if self.drives is not None and box.drive:
                group.create_task(self.drives.prepare(box.owner, box.workspace))
            group.create_task(self._boot(box, boot))

    async def prepare_resume(self, box: Box) -> Path | None:
        """Listen for the tunnel and mount the drive, as a resume needs.

        Returns the mount point of the drive on this host, or None if the box has no drive.
        """
        await self.listen(box)
        if self.drives is None or not box.drive:
            return None
        return await self.drives.prepare(box.owner, box.workspace)

    async def resumed(self, box: Box) -> None:
        """Wait until the agent of a resumed box has sent hello. Raises Unavailable."""
        await self.tunnels.get(box.id, RESUME_TIMEOUT)
        if self.drives is not None and box.drive:
            self.drives.use(box)

    async def _boot(self, box: Box, boot: Boot) -> None:
        if boot is Boot.TEMPLATE:
            await self.backend.resume(box.id, None)
        elif boot is Boot.PREPARED:
            await self.backend.thaw(box.id)
        else:
            await self.backend.start(box.id)
        async with asyncio.TaskGroup() as group:
            if self.drives is not None and box.drive:
                group.create_task(self.drives.attach(box))
            patience = HELLO_TIMEOUT if boot is Boot.DISK else COPY_TIMEOUT
            group.create_task(self.tunnels.get(box.id, patience))

    async def listen(self, box: Box) -> None:
        """Open the daemon's end of the box's tunnel."""
        await self.tunnels.open(box.id, box.host_key)

    async def tunnel(self, box: Box) -> Tunnel | None:
        """Return the tunnel of a running box, or None if its processes have ended.

        For a running box without a tunnel, the daemon creates the socket again, because the agent
        keeps dialling. Raises AgentLost if the box runs but its agent no longer answers.
        """
        try:
            tunnel = await self.tunnels.get(box.id, PROBE_TIMEOUT)
        except Unavailable:
            host_box = await self.look(box.id)
            if host_box is None or not host_box.running:
                return None
        else:
            await self._check_not_stopped(box)
            return tunnel
        if host_box.frozen:
            await self.backend.thaw(box.id)
        await self._check_not_stopped(box)
        await self.listen(box)
        return await self._redialled(box)

    async def _check_not_stopped(self, box: Box) -> None:
        """Raise AgentLost if a debugger or a signal keeps the agent stopped for STOPPED_S."""
        first = await self.backend.init_state(box.id)
        give_up = time.monotonic() + STOPPED_S
        while first.stopped and await self.backend.init_state(box.id) == first:
            if time.monotonic() >= give_up:
                raise agent_stopped(first)
            await asyncio.sleep(STOPPED_LOOK_S)

    async def _redialled(self, box: Box) -> Tunnel:
        """Create the socket again and return the tunnel of the agent that dials.

        Raises AgentLost if the agent stays asleep.
        """
        before = await self.backend.init_state(box.id)
        try:
            return await self.tunnels.get(box.id, SILENT_S)
        except Unavailable:
            if before.sleeping and await self.backend.init_state(box.id) == before:
                raise AgentLost(f"its agent (process 1) did nothing for {SILENT_S:.0f} s") from None
        return await self.tunnels.get(box.id, HELLO_TIMEOUT - SILENT_S)

    async def present(self) -> dict[str, BackendBox]:
        """Return all boxes of the backend by id."""
        return {one.box_id: one for one in await self.backend.list()}

    async def look(self, box_id: str) -> BackendBox | None:
        """Return the current state of the box in the backend, or None."""
        return (await self.present()).get(box_id)

    async def stop(self, box: Box) -> None:
        """End the processes of the box. Its disk stays, and so does its memory if it was saved.

        Raises RootHeld if the box is stopped but cannot start yet.
        """
        if self.drives is not None:
            await self.drives.leave(box)
        await self.tunnels.close(box.id)
        root_held: RootHeld | None = None
        try:
            await self.backend.stop(box.id)
        except RootHeld as error:
            root_held = error
        if self.drives is not None:
            await self.drives.forget(box)
        if root_held is not None:
            raise root_held

    async def destroy(self, box: Box) -> None:
        """Remove all parts of the box.

        A failure does not stop the removal of the other parts. All failures are raised together.
        """
        failures: list[BoxdError | OSError] = []
        steps: list[Callable[[], Awaitable[None]]] = [
            partial(self.tunnels.close, box.id),
            partial(self.backend.destroy, box.id),
            partial(self.remove_directory, box.id),
        ]
        if self.drives is not None:
            steps.insert(2, partial(self.drives.forget, box))
            steps.insert(0, partial(self.drives.leave, box))
        for step in steps:
            try:
                await step()
            except (BoxdError, OSError) as error:
                failures.append(error)
        if failures:
            texts = "; ".join(str(error) for error in failures)
            raise Unavailable(f"box {box.ref} is not completely removed: {texts}") from failures[0]

    async def directories(self) -> set[str]:
        """Return the ids of all boxes that have a directory on this host, complete or not."""
        return await self._places.run_directories.box_ids()

    async def remove_directory(self, box_id: str) -> None:
        """Remove the rest of the box's directory, which includes the run directory."""
        await self._places.run_directories.remove(box_id)


def agent_stopped(state: InitState) -> AgentLost:
    """Return the error for an agent that the kernel shows as stopped."""
    return AgentLost(f"its agent (process 1) does not run: {state.stopped}")
