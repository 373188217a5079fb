"""The parts of one box put together and taken apart: run directory, backend, tunnel, drive.

Knows nothing of states or rows; the lifecycle calls it under the box's lock. Every step is
idempotent, so `destroy` undoes any prefix of `build` and `start`.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from box_guest import protocol
from boxd.backends.interface import BoxPlan
from boxd.errors import BoxdError, Unavailable, UnknownImage

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from boxd.backends.interface import Backend, BackendBox
    from boxd.boxes.interface import Catalog, DriveAttacher, Tunnels
    from boxd.model.box import Box
    from boxd.tunnel.channel import Tunnel

HELLO_TIMEOUT = 30.0
"""Seconds in which a started agent must say hello."""
RESUME_TIMEOUT = 50.0
"""Seconds for the hello of an agent whose memory was brought back: after them that is lost, so it
is waited for longer than at a start. With HELLO_TIMEOUT for the start from the disk that follows,
a service that is to end waits no longer than service managers do (90 s)."""
COPY_TIMEOUT = 10.0
"""Seconds for the hello of an agent that ran already; a box that boots instead is no failure."""
PROBE_TIMEOUT = 2.0
"""Seconds a missing tunnel is waited for before it is asked whether the box still lives."""
_ID = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class Places:
    """What all boxes of this installation share. `boxes` is the parent of their directories."""

    boxes: Path
    runtime: Path
    daemon_key: str

    def run_dir(self, box_id: str) -> Path:
        """The directory that a box shares with the daemon."""
        return self.boxes / box_id / "run"


class Assembly:
    """Holds no state of its own. `drives` None means that drives are not enabled here.

    `new_identity` makes the key pair of a box: private in OpenSSH form, public as one line.
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
        """The guest runtime of this installation; another version stands elsewhere."""
        return str(self._places.runtime.resolve())

    def root(self, image: str) -> Path | None:
        """The unpacked root of an image; None when only the backend knows what it is.

        UnknownImage; Unavailable when an image of the catalog is not built.
        """
        try:
            return self._catalog.rootfs(image)
        except UnknownImage:
            if not self.backend.capabilities().any_image:
                raise
            return None

    async def build(self, box: Box, private_key: bytes, *, snapshot_id: str = "") -> None:
        """Makes the box without starting it; its disk and memory of a snapshot if one is given.

        UnknownImage, Unavailable, NotFound.
        """
        await self._write_identity(box, private_key)
        plan = BoxPlan(
            box_id=box.id,
            hostname=box.name,
            image=box.image,
            rootfs=self.root(box.image),
            runtime=self._places.runtime,
            run_dir=self._places.run_dir(box.id),
            cpus=box.cpus,
            mem_mb=box.mem_mb,
            pids=box.pids,
            disk_mb=box.disk_mb,
            egress=box.egress,
            template=not box.owner,
        )
        if snapshot_id:
            await self.backend.clone(plan, snapshot_id)
        else:
            await self.backend.create(plan)

    def is_lost(self, box: Box) -> bool:
        """Whether nothing of the box is on this host, as after a restore on another machine."""
        return not self._places.run_dir(box.id).exists()

    async def renew_identity(self, box: Box) -> str:
        """Gives a box that does not run another host key; its agent takes it up when it runs.

        Returns the public key. Memory that is used twice must not go on as one and the same agent.
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
        run_dir = self._places.run_dir(box.id)
        await asyncio.to_thread(_write_run_dir, run_dir, json.dumps(config), private_key)

    async def start(self, box: Box, *, copied: bool = False) -> None:
        """Starts the box; returns when its agent has said hello and its drive is in it.

        The tunnel listens before the agent starts, and the volume is made ready meanwhile; it is
        attached while the agent comes up. `copied`: it goes on from the memory of a template, in
        which there is no drive.
        """
        await self.listen(box)
        async with asyncio.TaskGroup() as group:
            if self.drives is not None and box.drive:
                group.create_task(self.drives.prepare(box.owner, box.workspace))
            group.create_task(self._boot(box, copied=copied))

    async def prepare_resume(self, box: Box) -> Path | None:
        """What a box needs before its memory is brought back: a listener, and its drive.

        Returns where the drive is mounted on this host; None: the box has none.
        """
        await self.listen(box)
        if self.drives is None or not box.drive:
            return None
        return await self.drives.prepare(box.owner, box.workspace)

    async def resumed(self, box: Box) -> None:
        """Returns when the agent of a box that runs on has said hello. Raises Unavailable."""
        await self.tunnels.get(box.id, RESUME_TIMEOUT)
        if self.drives is not None and box.drive:
            self.drives.use(box)

    async def _boot(self, box: Box, *, copied: bool) -> None:
        if copied:
            await self.backend.resume(box.id, None)
        else:
            await self.backend.start(box.id)
        async with asyncio.TaskGroup() as group:
            if self.drives is not None and box.drive:
                group.create_task(self.drives.attach(box))
            group.create_task(self.tunnels.get(box.id, COPY_TIMEOUT if copied else HELLO_TIMEOUT))

    async def listen(self, box: Box) -> None:
        """Opens the box's end of the tunnel for its agent."""
        await self.tunnels.open(box.id, self._places.run_dir(box.id), box.host_key)

    async def tunnel(self, box: Box) -> Tunnel | None:
        """The tunnel of a running box; None when its processes are gone.

        A box that lives without a tunnel is listened for anew: its agent dials all the time.
        """
        try:
            return await self.tunnels.get(box.id, PROBE_TIMEOUT)
        except Unavailable:
            found = await self.look(box.id)
            if found is None or not found.running:
                return None
        if found.frozen:
            await self.backend.thaw(box.id)
        await self.listen(box)
        return await self.tunnels.get(box.id, HELLO_TIMEOUT)

    async def present(self) -> dict[str, BackendBox]:
        """All boxes of the backend."""
        return {one.box_id: one for one in await self.backend.list()}

    async def look(self, box_id: str) -> BackendBox | None:
        """The box as the backend has it now."""
        return (await self.present()).get(box_id)

    async def stop(self, box: Box) -> None:
        """Ends the box's processes; its disk stays, and its memory if it was saved."""
        if self.drives is not None:
            await self.drives.leave(box)
        await self.tunnels.close(box.id)
        await self.backend.stop(box.id)
        if self.drives is not None:
            await self.drives.forget(box)

    async def destroy(self, box: Box) -> None:
        """Removes everything of the box, also after a failure in any of its steps.

        Each part is tried even if another one fails; then the failures are raised together.
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
            raise Unavailable(f"box {box.ref} not wholly removed: {texts}") from failures[0]

    async def directories(self) -> set[str]:
        """Ids of all boxes that have a directory on this host, whether whole or not."""
        return await asyncio.to_thread(_box_ids, self._places.boxes)

    async def remove_directory(self, box_id: str) -> None:
        """Removes what the backend left of the box's directory, the run directory above all."""
        await asyncio.to_thread(_remove_tree, self._places.boxes / box_id)


def _box_ids(boxes: Path) -> set[str]:
    if not boxes.exists():
        return set()
    return {path.name for path in boxes.iterdir() if _ID.fullmatch(path.name)}


def _write_run_dir(run_dir: Path, config: str, private_key: bytes) -> None:
    """Private to root: the box sees it through its mount, nobody else on the host."""
    run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    _write_private(run_dir / protocol.AGENT_CONFIG, config.encode())
    _write_private(run_dir / protocol.HOST_KEY, private_key)


def _write_private(path: Path, data: bytes) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(data)


def _remove_tree(path: Path) -> None:
    """Never crosses a mount point: a mount that is left makes it fail instead."""
    if path.exists():
        shutil.rmtree(path)
