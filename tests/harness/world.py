"""A whole core on fakes: store in memory, fake backend, tunnels, drives and catalog.

`World.restart` is a new daemon on the same store and the same host. `World.fail_at` makes one
step of the parts around the lifecycle raise.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, cast

from boxd.backends.fake import FakeBackend
from boxd.boxes.assembly import Assembly, Places
from boxd.boxes.lifecycle import Lifecycle
from boxd.boxes.quota import Tier, load_tiers
from boxd.errors import Conflict, Unavailable, UnknownImage
from boxd.model.catalog import Flavor, Image
from boxd.operations import Operations
from boxd.principal import Principal
from boxd.store.memory import MemoryStore

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable
    from pathlib import Path

    from boxd.backends.interface import BoxPlan
    from boxd.model.box import Box
    from boxd.store.interface import ControlStore
    from boxd.tunnel.channel import Tunnel

ALICE = Principal("SHA256:alice", None, "ssh_key")
BOB = Principal("SHA256:bob", None, "ssh_key")
SCOPED = Principal(ALICE.owner, "ws1", "api_key", "k1")
"""A key of Alice that is confined to one workspace."""
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
    """What `fail_at` raises unless told otherwise."""


class TurnedClock:
    """A clock whose hands the test turns."""

    def __init__(self) -> None:
        self.wall = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
        self.seconds = 1000.0

    def now(self) -> datetime:
        """Wall time."""
        return self.wall

    def monotonic(self) -> float:
        """Seconds that only grow."""
        return self.seconds

    def turn(self, by: timedelta) -> None:
        """Moves both hands."""
        self.wall += by
        self.seconds += by.total_seconds()


@dataclass
class Steps:
    """Counts the steps that parts make, fails and holds them."""

    done: list[str] = field(default_factory=list)
    failing: dict[str, BaseException] = field(default_factory=dict)
    held: dict[str, asyncio.Event] = field(default_factory=dict)

    async def step(self, name: str) -> None:
        """Called by the fakes at each step."""
        self.step_now(name)
        if name in self.held:
            await self.held[name].wait()

    def step_now(self, name: str) -> None:
        """The same where nothing can be awaited."""
        self.done.append(name)
        if name in self.failing:
            raise self.failing[name]


class SteppedBackend(FakeBackend):
    """The fake backend, whose steps can fail."""

    def __init__(self, steps: Steps) -> None:
        super().__init__()
        self._steps = steps

    async def create(self, plan: BoxPlan) -> None:
        """Fails after the work: the worst moment."""
        await super().create(plan)
        await self._steps.step("backend.create")

    async def start(self, box_id: str) -> None:
        """Fails after the work: the worst moment."""
        await super().start(box_id)
        await self._steps.step("backend.start")

    async def stop(self, box_id: str) -> None:
        """Fails before the work."""
        await self._steps.step("backend.stop")
        await super().stop(box_id)

    async def destroy(self, box_id: str) -> None:
        """Fails before the work."""
        await self._steps.step("backend.destroy")
        await super().destroy(box_id)

    async def lives(self, box_id: str) -> bool:
        """Whether the box's processes run."""
        return any(one.box_id == box_id and one.running for one in await self.list())


class FakeTunnels:
    """Tunnels of agents that answer whenever their box runs."""

    def __init__(self, steps: Steps, backend: SteppedBackend) -> None:
        self._steps = steps
        self._backend = backend
        self.open_for: set[str] = set()
        self.shells: dict[str, int] = {}

    async def open(self, box_id: str, directory: Path, host_key: str) -> None:
        """The agent needs the directory and its files."""
        if not (directory / "config.json").exists():
            raise Unavailable("the agent finds no configuration")
        assert host_key.startswith("ssh-ed25519 ")
        self.open_for.add(box_id)
        await self._steps.step("tunnel.open")

    async def get(self, box_id: str, timeout: float = 30) -> Tunnel:
        """Answers at once when the box runs and is listened for."""
        del timeout
        if box_id not in self.open_for or not await self._backend.lives(box_id):
            raise Unavailable("the box does not answer")
        await self._steps.step("tunnel.hello")
        return cast("Tunnel", f"tunnel of {box_id}")

    async def quiesce(self, box_id: str) -> int | None:
        """Ends it; `shells` says what the agent tells."""
        self.open_for.discard(box_id)
        await self._steps.step("tunnel.quiesce")
        return self.shells.get(box_id, 0)

    async def close(self, box_id: str) -> None:
        """Ends it."""
        self.open_for.discard(box_id)

    async def close_all(self) -> None:
        """Ends all."""
        self.open_for.clear()


class FakeDrives:
    """Knows which boxes have a drive."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self.attached: set[str] = set()
        self.holders: dict[str, str] = {}
        self.wanted: set[tuple[str, str | None]] | None = None

    async def prepare(self, owner: str, workspace: str | None) -> None:
        """One step."""
        del owner, workspace
        await self._steps.step("drive.prepare")

    async def attach(self, box: Box) -> None:
        """One step."""
        await self._steps.step("drive.attach")
        self.attached.add(box.id)

    async def detach(self, box: Box) -> None:
        """Conflict when held."""
        if box.id in self.holders:
            raise Conflict(f"/wrk is in use by {self.holders[box.id]}")
        self.attached.discard(box.id)

    async def info(self, box: Box) -> dict[str, object]:
        """Whether it is there."""
        return {"mounted": box.id in self.attached}

    async def forget(self, box: Box) -> None:
        """The box stopped."""
        self.attached.discard(box.id)

    async def release_unused(self, wanted: set[tuple[str, str | None]]) -> None:
        """Remembers which are used."""
        self.wanted = wanted


class FakeCatalog:
    """Two images, one of them not built, and two flavors."""

    default_flavor = Flavor("small", "small", 1.0, 512)

    def __init__(self, root: Path) -> None:
        self._root = root

    def images(self) -> list[Image]:
        """Both."""
        return [Image("debian", "the default"), Image("unbuilt", "not built")]

    def flavors(self) -> list[Flavor]:
        """Both."""
        return [self.default_flavor, Flavor("large", "large", 4.0, 4096)]

    def rootfs(self, name: str) -> Path:
        """A directory that nobody looks into."""
        if name == "unbuilt":
            raise Unavailable("image unbuilt is not built: boxd images build unbuilt")
        if name != "debian":
            raise UnknownImage(f"no image {name!r}; known: debian, unbuilt")
        return self._root / "images" / name / "rootfs"


class World:
    """See the module."""

    def __init__(
        self,
        root: Path,
        *,
        store: ControlStore | None = None,
        automount: bool = True,
        tier: Callable[[Tier], Tier] = lambda tier: tier,
    ) -> None:
        self.root = root
        self.steps = Steps()
        self.clock = TurnedClock()
        self.store: ControlStore = store if store is not None else MemoryStore()
        self.backend = SteppedBackend(self.steps)
        self.catalog = FakeCatalog(root)
        self.tier = tier(load_tiers()["default"])
        self.automount = automount
        self._make_daemon()

    def _make_daemon(self) -> None:
        self.tunnels = FakeTunnels(self.steps, self.backend)
        self.drives = FakeDrives(self.steps)
        places = Places(self.root / "boxes", self.root / "runtime", "ssh-ed25519 DAEMON")
        self.lifecycle = Lifecycle(
            store=self.store,
            assembly=Assembly(
                backend=self.backend,
                tunnels=self.tunnels,
                drives=self.drives,
                catalog=self.catalog,
                places=places,
                new_identity=self._new_identity,
            ),
            catalog=self.catalog,
            tier=self.tier,
            clock=self.clock,
            default_image="debian",
            automount=self.automount,
        )
        self.operations = Operations(
            store=self.store,
            lifecycle=self.lifecycle,
            catalog=self.catalog,
            drives=None,
            tier=self.tier,
            clock=self.clock,
        )

    def _new_identity(self) -> tuple[bytes, str]:
        """A key pair that opens nothing."""
        self.steps.step_now("identity")
        return b"PRIVATE", "ssh-ed25519 AAAA"

    async def start(self) -> None:
        """Starts the daemon's part."""
        await self.backend.setup()
        await self.lifecycle.start()

    async def close(self, *, stop_boxes: bool = False) -> None:
        """Ends the daemon's part."""
        await self.operations.close()
        await self.lifecycle.close(stop_boxes=stop_boxes)

    async def restart(self) -> None:
        """A new daemon on the same store and host."""
        await self.close()
        self._make_daemon()
        await self.start()

    def fail_at(self, step: str, error: BaseException | None = None) -> None:
        """Makes a step raise from now on."""
        self.steps.failing[step] = error or Failure(f"{step} failed")

    def heal(self) -> None:
        """No step fails any more."""
        self.steps.failing.clear()

    async def left_overs(self) -> dict[str, object]:
        """What stands on the host and in the store beside nothing."""
        boxes = self.root / "boxes"
        found: dict[str, object] = {
            "rows": [box.ref for box in await self.store.all_boxes()],
            "backend": [one.box_id for one in await self.backend.list()],
            "tunnels": sorted(self.tunnels.open_for),
            "drives": sorted(self.drives.attached),
            "directories": sorted(p.name for p in boxes.iterdir()) if boxes.exists() else [],
        }
        return {name: what for name, what in found.items() if what}
