"""A whole core on fakes: store in memory, fake backend, tunnels, drives and catalog.

`World.restart` creates a new daemon on the same store and host, after `World.kill` has ended the
old one at a step. `World.fail_at` makes one step of the parts around the lifecycle raise.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, cast

from boxd.backends.run_directories import RunDirectories
from boxd.boxes.lifecycle.assembly import Assembly, Places
from boxd.boxes.lifecycle.lifecycle import Lifecycle, LifecycleOptions
from boxd.boxes.limits.access_policy import AccessPolicy
from boxd.boxes.limits.account_keys import AccountKeys
from boxd.boxes.limits.admission import Limits
from boxd.boxes.limits.tier_limits import Tier, load_tiers
from boxd.boxes.limits.tiers import Tiers
from boxd.boxes.timing.policy import SHIPPED, Policy
from boxd.errors import Conflict, Unavailable, UnknownImage
from boxd.model.catalog import Flavor, Image
from boxd.operations import Dependencies, Operations
from boxd.principal import Principal
from boxd.tunnel.presence import Presence
from boxd.workspaces.seal import Sealer
from tests.doubles.backend import FakeBackend
from tests.doubles.control_store import MemoryStore
from tests.harness.service.mortal import Life, mortal

if TYPE_CHECKING:
    from collections.abc import Callable

    from boxd.backends.interface import BackendBox, BoxPlan
    from boxd.boxes.limits.host import HostLimits
    from boxd.model.box import Box
    from boxd.operations.shared.drives import Drives
    from boxd.store.interface import ControlStore
    from boxd.tunnel.channel import Tunnel

ALICE = Principal("SHA256:alice", None, "ssh_key")
BOB = Principal("SHA256:bob", None, "ssh_key")
SCOPED = Principal(ALICE.owner, "ws1", "api_key", "k1")
"""A key of Alice with the scope of one workspace."""
CREATE_STEPS = (
    "identity",
    "backend.create",
    "tunnel.open",
    "backend.start",
    "tunnel.hello",
    "drive.prepare",
    "drive.attach",
)


class Failure(Unavailable):
    """The default error of `fail_at`."""


class TurnedClock:
    """A clock that only the test moves."""

    def __init__(self) -> None:
        self.wall = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
        self.seconds = 1000.0
        self.boot = "first"

    def now(self) -> datetime:
        """Return wall time."""
        return self.wall

    def monotonic(self) -> float:
        """Return monotonic seconds."""
        return self.seconds

    def boot_id(self) -> str:
        """Return the host's present boot id."""
        return self.boot

    def turn(self, by: timedelta) -> None:
        """Move wall and monotonic time forward."""
        self.wall += by
        self.seconds += by.total_seconds()

    def set(self, by: timedelta) -> None:
        """Change only the wall clock."""
        self.wall += by

    def restart(self) -> None:
        """Simulate a restart of the host."""
        self.seconds = 5.0
        self.boot += " again"


@dataclass
class Steps:
    """Counts the steps of the parts, makes them fail and blocks them."""

    done: list[str] = field(default_factory=list)
    failing: dict[str, BaseException] = field(default_factory=dict)
    held: dict[str, asyncio.Event] = field(default_factory=dict)

    async def step(self, name: str) -> None:
        """Record a step. The fakes call this at each step."""
        self.step_now(name)
        if name in self.held:
            await self.held[name].wait()

    def step_now(self, name: str) -> None:
        """Record a step of code that cannot await."""
        self.done.append(name)
        if name in self.failing:
            raise self.failing[name]


class SteppedBackend(FakeBackend):
    """The fake backend, whose steps can fail."""

    def __init__(self, steps: Steps, *, suspends: bool) -> None:
        super().__init__(suspends=suspends)
        self._steps = steps
        self.memories: list[str] = []
        """Ids of boxes, once for each memory that they received."""

    async def create(self, plan: BoxPlan) -> None:
        """Fail after the work, the worst moment."""
        await super().create(plan)
        await self._steps.step("backend.create")

    async def start(self, box_id: str) -> None:
        """Fail after the work, the worst moment."""
        await super().start(box_id)
        await self._steps.step("backend.start")

    async def stop(self, box_id: str) -> None:
        """Fail before the work."""
        await self._steps.step("backend.stop")
        await super().stop(box_id)

    async def destroy(self, box_id: str) -> None:
        """Fail before the work."""
        await self._steps.step("backend.destroy")
        await super().destroy(box_id)

    async def freeze(self, box_id: str) -> None:
        """Fail after the work, the worst moment."""
        await super().freeze(box_id)
        await self._steps.step("backend.freeze")

    async def save_memory(self, box_id: str) -> None:
        """Fail before the work: a failed call has published nothing."""
        await self._steps.step("backend.save_memory")
        await super().save_memory(box_id)
        self.memories.append(box_id)

    async def thaw(self, box_id: str) -> None:
        """Fail before the work."""
        await self._steps.step("backend.thaw")
        await super().thaw(box_id)

    async def resume(self, box_id: str, drive: Path | None) -> None:
        """Fail before the work."""
        await self._steps.step("backend.resume")
        await super().resume(box_id, drive)

    async def snapshot(
        self, box_id: str, snapshot_id: str, *, lasting: bool = True, memory: bool = True
    ) -> None:
        """Fail before the work: a failed call leaves no snapshot."""
        await self._steps.step("backend.snapshot")
        await super().snapshot(box_id, snapshot_id, lasting=lasting, memory=memory)

    async def restore_snapshot(self, box_id: str, snapshot_id: str) -> None:
        """Fail before the work."""
        await self._steps.step("backend.restore_snapshot")
        await super().restore_snapshot(box_id, snapshot_id)
        self.memories.append(box_id)

    async def clone(self, plan: BoxPlan, snapshot_id: str) -> None:
        """Fail after the work, the worst moment."""
        await super().clone(plan, snapshot_id)
        self.memories.append(plan.box_id)
        await self._steps.step("backend.clone")

    async def drop_snapshot(self, snapshot_id: str) -> None:
        """Fail before the work."""
        await self._steps.step("backend.drop_snapshot")
        await super().drop_snapshot(snapshot_id)

    async def lives(self, box_id: str) -> bool:
        """Return whether the box's processes run."""
        found = await self.look(box_id)
        return found is not None and found.running and not found.frozen

    async def look(self, box_id: str) -> BackendBox | None:
        """Return the state of the box on the host."""
        return next((one for one in await self.list() if one.box_id == box_id), None)


class FakeTunnels:
    """Tunnels of agents that answer whenever their box runs."""

    def __init__(self, steps: Steps, backend: SteppedBackend, directories: RunDirectories) -> None:
        self._steps, self._backend = steps, backend
        self._directories = directories
        self.open_for: set[str] = set()
        self.shells: dict[str, int] = {}
        """Answer of agents to the announcement of a freeze, with `commands`."""
        self.commands: dict[str, int] = {}

    async def open(self, box_id: str, host_key: str) -> None:
        """Check the run directory and the files that the agent needs."""
        if not (self._directories.path(box_id) / "config.json").exists():
            raise Unavailable("the agent finds no configuration")
        assert host_key.startswith("ssh-ed25519 ")
        self.open_for.add(box_id)
        await self._steps.step("tunnel.open")

    async def get(self, box_id: str, timeout: float = 30) -> Tunnel:
        """Return a tunnel at once if the box runs and its listener is open."""
        del timeout
        if box_id not in self.open_for or not await self._backend.lives(box_id):
            raise Unavailable("the box does not answer")
        await self._steps.step("tunnel.hello")
        return cast("Tunnel", f"tunnel of {box_id}")

    def peek(self, box_id: str) -> Tunnel | None:
        """Return the tunnel while the listener is open."""
        return cast("Tunnel", f"tunnel of {box_id}") if box_id in self.open_for else None

    async def quiesce(self, box_id: str) -> Presence | None:
        """Do one step; the tunnel is then closed."""
        self.open_for.discard(box_id)
        await self._steps.step("tunnel.quiesce")
        presence = Presence(self.shells.get(box_id, 0), self.commands.get(box_id, 0))
        return presence if await self._backend.lives(box_id) else None

    async def close(self, box_id: str) -> None:
        """Close one listener."""
        self.open_for.discard(box_id)

    async def close_all(self) -> None:
        """Close all listeners."""
        self.open_for.clear()


class FakeDrives:
    """Records which boxes have a drive."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self.attached: set[str] = set()
        self.holders: dict[str, str] = {}
        self.wanted: set[tuple[str, str | None]] | None = None

    async def prepare(self, owner: str, workspace: str | None) -> Path:
        """Do one step."""
        await self._steps.step("drive.prepare")
        return Path("/mounts") / owner / (workspace or "")

    async def attach(self, box: Box) -> None:
        """Do one step."""
        await self._steps.step("drive.attach")
        self.attached.add(box.id)

    def use(self, box: Box) -> None:
        """Record the drive of a box that was created with it."""
        self.attached.add(box.id)

    async def detach(self, box: Box) -> None:
        """Detach the drive. Raises Conflict if a program holds it."""
        if box.id in self.holders:
            raise Conflict(f"/wrk is in use by {self.holders[box.id]}")
        self.attached.discard(box.id)

    async def info(self, box: Box) -> dict[str, object]:
        """Return whether the drive is attached."""
        return {"mounted": box.id in self.attached}

    async def forget(self, box: Box) -> None:
        """Record that the box has stopped."""
        self.attached.discard(box.id)

    async def leave(self, box: Box) -> None:
        """Do nothing: there is no data to save."""
        del box

    async def release_unused(self, wanted: set[tuple[str, str | None]]) -> None:
        """Record which drives are in use."""
        self.wanted = wanted


class FakeCatalog:
    """Two images, one of them not built, and two flavors."""

    default_flavor = Flavor("small", "small", 1.0, 512)

    def __init__(self, root: Path) -> None:
        self._root = root

    def images(self) -> list[Image]:
        """Return both images."""
        return [Image("debian", "the default"), Image("unbuilt", "not built")]

    def flavors(self) -> list[Flavor]:
        """Return both flavors."""
        return [self.default_flavor, Flavor("large", "large", 4.0, 4096)]

    def rootfs(self, name: str) -> Path:
        """Return a directory that no test reads."""
        if name == "unbuilt":
            raise Unavailable("image unbuilt is not built: boxd images build unbuilt")
        if name != "debian":
            raise UnknownImage(f"no image {name!r}; known: debian, unbuilt")
        return self._root / "images" / name / "rootfs"


class World:
    """The core on fakes."""

    def __init__(
        self,
        root: Path,
        *,
        store: ControlStore | None = None,
        automount: bool = True,
        suspends: bool = False,
        policy: Policy = SHIPPED,
        tier: Callable[[Tier], Tier] = lambda tier: tier,
        host: HostLimits | None = None,
        templates: bool = False,
        previews: bool = False,
        global_names: bool = False,
    ) -> None:
        self.root = root
        self.steps = Steps()
        self.clock = TurnedClock()
        self.store: ControlStore = store if store is not None else MemoryStore()
        self.backend = SteppedBackend(self.steps, suspends=suspends)
        self.policy = policy
        self.catalog = FakeCatalog(root)
        self.tier = tier(load_tiers()["default"])
        self.tiers: dict[str, Tier] = {}
        self.administrators: set[str] = set()
        self.automount = automount
        self.open = False
        self.host = host
        self.templates = templates
        self.previews = previews
        self.global_names = global_names
        self._make_daemon()

    def _make_daemon(self) -> None:
        self.life = life = Life()
        directories = RunDirectories(self.root / "boxes")
        self.tunnels = FakeTunnels(self.steps, self.backend, directories)
        self.drives = FakeDrives(self.steps)
        store = mortal(self.store, life, "store")
        self.given = Tiers(store, {**load_tiers(), "default": self.tier})
        self.access_policy = AccessPolicy(store, self.clock, self.administrators)
        self.account_keys = AccountKeys(store)
        places = Places(directories, self.root / "runtime", "ssh-ed25519 DAEMON")
        self.lifecycle = Lifecycle(
            store=store,
            assembly=Assembly(
                backend=mortal(self.backend, life, "backend"),
                tunnels=mortal(self.tunnels, life, "tunnel"),
                drives=mortal(self.drives, life, "drive"),
                catalog=self.catalog,
                places=places,
                new_identity=self._new_identity,
            ),
            catalog=self.catalog,
            clock=self.clock,
            limits=Limits(tier_of=self.tier_of, host=self.host),
            options=LifecycleOptions(
                default_image="debian",
                automount=self.automount,
                policy=self.policy,
                templates=self.templates,
                previews=self.previews,
                global_names=self.global_names,
            ),
        )
        self._dependencies = Dependencies(
            store=store,
            lifecycle=self.lifecycle,
            catalog=self.catalog,
            drives=None,
            tier_of=self.tier_of,
            tiers=self.given,
            access_policy=self.access_policy,
            account_keys=self.account_keys,
            clock=self.clock,
            sealer=Sealer(self.root / "master.key"),
        )
        self.operations = Operations.compose(self._dependencies)

    def use_drives(self, drives: Drives) -> None:
        """Give the operations of this daemon drives; this creates new objects."""
        self._dependencies = replace(self._dependencies, drives=drives)
        self.operations = Operations.compose(self._dependencies)

    def tier_of(self, owner: str) -> Tier:
        """Return the limits of an owner: those in `tiers`, else those of the owner's tier."""
        return self.tiers.get(owner) or self.given.of(owner)

    def _new_identity(self) -> tuple[bytes, str]:
        """Return a key pair that opens nothing."""
        self.steps.step_now("identity")
        return b"PRIVATE", "ssh-ed25519 AAAA"

    async def start(self, *, stopping: bool = False) -> None:
        """Start the daemon's part; `stopping` as `boxd down` does."""
        await self.backend.setup()
        await self.given.start()
        await self.access_policy.start()
        await self.account_keys.start()
        await self.lifecycle.start(stopping=stopping)
        await self.lifecycle.agents.close()  # Tests start this check themselves.
        self.open = True

    async def close(self, *, stop_boxes: bool = False) -> None:
        """End the daemon's part. The second call does nothing."""
        if not self.open:
            return
        self.open = False
        await self.operations.close()
        await self.lifecycle.close(stop_boxes=stop_boxes)

    async def restart(self) -> None:
        """Create a new daemon on the same store and host."""
        await self.close()
        self._make_daemon()
        await self.start()

    async def kill(self) -> None:
        """End the daemon's process at its present step; the caller may `start` the next one."""
        self.life.dead, self.open = True, False
        core = self.lifecycle
        timers = (*core._timers._work, *core._timers._loop)
        tasks = [*core._tasks, *timers, *core.templates._tasks, *core.usage._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._make_daemon()

    async def crash(self) -> None:
        """Kill the daemon and start a new one."""
        await self.kill()
        await self.start()

    async def reboot(self) -> None:
        """Restart the host and the daemon."""
        await self.kill()
        for one in await self.backend.list():
            self.backend.crash(one.box_id)
        self.clock.restart()
        await self.start()

    async def tick(self, by: timedelta) -> None:
        """Let time pass; the timers then run all due actions."""
        self.clock.turn(by)
        await self.look()

    async def look(self) -> None:
        """Let the timers run all due actions."""
        self.lifecycle._timers.look()
        await self.lifecycle._timers.idle()

    async def quiet(self) -> None:
        """Wait for the background work of the lifecycle."""
        while tasks := [*self.lifecycle._tasks, *self.lifecycle.templates._tasks]:
            await asyncio.gather(*tasks, return_exceptions=True)

    def fail_at(self, step: str, error: BaseException | None = None) -> None:
        """Make a step raise from now on."""
        self.steps.failing[step] = error or Failure(f"{step} failed")

    def heal(self) -> None:
        """Make all steps succeed again."""
        self.steps.failing.clear()

    async def left_overs(self) -> dict[str, object]:
        """Return the remaining objects on the host and in the store."""
        boxes = self.root / "boxes"
        found: dict[str, object] = {
            "rows": [box.ref for box in await self.store.all_boxes()],
            "snapshots": [one.name for one in await self.store.all_snapshots()],
            "snapshots of the host": list(await self.backend.snapshots()),
            "backend": [one.box_id for one in await self.backend.list()],
            "tunnels": sorted(self.tunnels.open_for),
            "drives": sorted(self.drives.attached),
            "directories": sorted(p.name for p in boxes.iterdir()) if boxes.exists() else [],
        }
        return {name: what for name, what in found.items() if what}
