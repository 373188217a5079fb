"""A backend that keeps state and runs nothing, for tests of the layers above.

It passes the conformance suite as far as that can be seen without processes. `fail_next` makes the
next call of a method fail, so that the layers above meet the errors a real backend raises.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from boxd.backends.interface import BackendBox, BoxPlan, BoxStats, Capabilities, InitState
from boxd.errors import Conflict, MemoryLost, NotFound, Unavailable, Unsupported

if TYPE_CHECKING:
    import socket
    from collections.abc import Collection, Mapping
    from pathlib import Path

    from boxd.errors import BoxdError


MEMORY_BYTES = 1 << 20
"""What the memory of each sleeping box takes on the disk."""


class _Box:
    def __init__(self, plan: BoxPlan) -> None:
        self.plan = plan
        self.running = False
        self.frozen = False
        self.memory = False
        self.starts = 0
        self.resumes = 0
        self.drive: Path | None = None
        self.origin = ""


class FakeBackend:
    """Boxes as entries of a dictionary.

    `suspends` chooses whether it can suspend. No method awaits, so none interleaves with another.
    """

    name = "fake"

    def __init__(self, *, suspends: bool = False) -> None:
        self._suspends = suspends
        self._ready = False
        self._boxes: dict[str, _Box] = {}
        self._snapshots: dict[str, bool] = {}
        self._failures: dict[str, BoxdError] = {}
        self.holders: dict[str, str] = {}
        """By box id: what holds the drive, so that `detach_drive` refuses."""
        self.killed: dict[str, int] = {}
        """By box id: what `oom_kills` answers."""
        self.lost: set[str] = set()
        """Ids of boxes whose memory cannot be brought back."""
        self.runtimes: set[str] = set()
        """Names of the OCI runtimes that boxes may have."""
        self.init_states: dict[str, InitState] = {}
        """By box id: how the init of a running box is doing; one that starts is well."""

    def fail_next(self, method: str, error: BoxdError) -> None:
        """Makes the next call of `method` raise `error` and change nothing."""
        self._failures[method] = error

    def drive(self, box_id: str) -> Path | None:
        """What is attached to a box."""
        return self._find(box_id).drive

    def plan(self, box_id: str) -> BoxPlan:
        """What a box was made from."""
        return self._find(box_id).plan

    def crash(self, box_id: str) -> None:
        """Ends a box's init from outside."""
        box = self._find(box_id)
        box.running = box.frozen = False
        box.drive = None

    def resumes(self, box_id: str) -> int:
        """How often the box ran on from its memory."""
        return self._find(box_id).resumes

    def origin(self, box_id: str) -> str:
        """The snapshot that a box was made of; empty: of its image."""
        return self._find(box_id).origin

    async def setup(self) -> None:
        """Nothing to prepare."""
        self._fail("setup")
        self._ready = True

    async def close(self) -> None:
        """Boxes stay."""
        self._fail("close")
        self._ready = False

    def capabilities(self) -> Capabilities:
        """As the constructor was told."""
        why = "" if self._suspends else "this backend cannot suspend boxes"
        return Capabilities(
            suspend=self._suspends,
            fork=self._suspends,
            snapshot=True,
            disk_limit=False,
            any_image=False,
            why_no_suspend=why,
        )

    async def require_kind(self, runtime: str, *, containers: bool) -> None:
        """Knows the runtimes in `runtimes`."""
        del containers
        if runtime and runtime not in self.runtimes:
            raise Unsupported(f"this host has no runtime {runtime!r}")

    async def expect(self, roots: Mapping[str, Path], first: str) -> None:
        """Boxes stand on the roots themselves: nothing takes long, and nothing is kept."""

    async def create(self, plan: BoxPlan) -> None:
        """Remembers the plan; a known box stays as it is."""
        self._fail("create")
        if not self._ready:
            raise Unavailable("the backend is not set up")
        self._boxes.setdefault(plan.box_id, _Box(plan))

    async def start(self, box_id: str) -> None:
        """Marks it as running."""
        self._fail("start")
        box = self._find(box_id)
        if not box.running:
            box.running = True
            box.starts += 1
            self.init_states.pop(box_id, None)
            box.memory = False

    async def init_state(self, box_id: str) -> InitState:
        """What a test has set."""
        return self.init_states.get(box_id, InitState())

    async def suspect_inits(self, box_ids: Collection[str]) -> set[str]:
        """Those that a test has stopped or crashed."""
        stopped = {one for one in box_ids if self.init_states.get(one, InitState()).stopped}
        return stopped | {one for one in box_ids if not self._find(one).running}

    async def attach_drive(self, box_id: str, source: Path) -> None:
        """Remembers the source."""
        self._fail("attach_drive")
        box = self._find(box_id)
        if not box.running:
            raise Conflict("the box is not running")
        box.drive = source

    async def detach_drive(self, box_id: str) -> None:
        """Refuses while `holders` names something."""
        self._fail("detach_drive")
        box = self._find(box_id)
        if box.drive is not None and box_id in self.holders:
            raise Conflict(f"/wrk is in use by {self.holders[box_id]}")
        box.drive = None

    async def stop(self, box_id: str) -> None:
        """Marks it as stopped."""
        self._fail("stop")
        self.crash(box_id)

    async def destroy(self, box_id: str) -> None:
        """Forgets it."""
        self._fail("destroy")
        self._boxes.pop(box_id, None)

    async def list(self) -> list[BackendBox]:
        """All boxes, in the order of ids."""
        self._fail("list")
        return [
            BackendBox(box_id, box.running, box.frozen, box.memory)
            for box_id, box in sorted(self._boxes.items())
        ]

    async def stats(self, box_id: str) -> BoxStats:
        """One process while it runs, and MEMORY_BYTES on the disk while it has memory there."""
        self._fail("stats")
        box = self._find(box_id)
        saved = MEMORY_BYTES if box.memory else 0
        return BoxStats(0.0, 0, 0, pids=int(box.running), saved_memory_bytes=saved)

    async def oom_kills(self, box_id: str) -> int:
        """What the test set in `killed`."""
        self._find(box_id)
        return self.killed.get(box_id, 0)

    async def tcp_socket(self, box_id: str, family: int) -> socket.socket | None:
        """There is no network."""
        del box_id, family
        return None

    async def freeze(self, box_id: str) -> None:
        """Marks it as frozen."""
        self._fail("freeze")
        box = self._suspendable(box_id)
        if not box.running:
            raise Conflict("the box is not running")
        box.frozen = True

    async def save_memory(self, box_id: str) -> None:
        """Marks its memory as kept."""
        self._fail("save_memory")
        box = self._suspendable(box_id)
        if not box.frozen:
            raise Conflict("the box is not frozen")
        box.memory = True

    async def thaw(self, box_id: str) -> None:
        """Undoes both marks."""
        self._fail("thaw")
        box = self._suspendable(box_id)
        if not box.running:
            raise Conflict("the box is not running")
        box.memory = box.frozen = False

    async def resume(self, box_id: str, drive: Path | None) -> None:
        """Uses up the memory."""
        self._fail("resume")
        box = self._suspendable(box_id)
        if box.running:
            return
        if not box.memory or box_id in self.lost:
            box.memory = False
            raise MemoryLost("its memory cannot be brought back")
        box.memory = False
        box.running = True
        box.resumes += 1
        box.drive = drive

    async def discard_memory(self, box_id: str) -> None:
        """Forgets the mark."""
        self._fail("discard_memory")
        self._suspendable(box_id).memory = False

    async def snapshot(
        self, box_id: str, snapshot_id: str, *, lasting: bool = True, memory: bool = True
    ) -> None:
        """Remembers whether there is memory in it."""
        del lasting
        self._fail("snapshot")
        box = self._find(box_id)
        if box.running and not box.frozen:
            raise Conflict("the box runs")
        self._snapshots[snapshot_id] = memory and (box.frozen or box.memory)

    async def snapshot_bytes(self, snapshot_id: str) -> int:
        """A MiB, and another one for memory."""
        self._fail("snapshot_bytes")
        return (1 + self._kept(snapshot_id)) << 20

    async def drop_snapshot(self, snapshot_id: str) -> None:
        """Forgets it."""
        self._fail("drop_snapshot")
        self._snapshots.pop(snapshot_id, None)

    async def snapshots(self) -> tuple[str, ...]:
        """All, in the order of ids."""
        self._fail("snapshots")
        return tuple(sorted(self._snapshots))

    async def restore_snapshot(self, box_id: str, snapshot_id: str) -> None:
        """Only the mark of memory is restored."""
        self._fail("restore_snapshot")
        box = self._find(box_id)
        if box.running:
            raise Conflict("the box runs")
        box.memory = self._kept(snapshot_id)

    async def rename(self, box_id: str, hostname: str) -> None:
        """Note the name of a frozen box."""
        self._fail("rename")
        box = self._boxes[box_id]
        if not box.frozen:
            raise Conflict("the box is not frozen")
        box.plan = replace(box.plan, hostname=hostname, template=False)

    async def clone(self, plan: BoxPlan, snapshot_id: str) -> None:
        """A box with the snapshot's mark of memory."""
        self._fail("clone")
        memory = self._kept(snapshot_id)
        await self.create(plan)
        box = self._boxes[plan.box_id]
        box.memory, box.origin = memory, snapshot_id

    def _kept(self, snapshot_id: str) -> bool:
        if snapshot_id not in self._snapshots:
            raise NotFound(f"the backend has no snapshot {snapshot_id}")
        return self._snapshots[snapshot_id]

    def _suspendable(self, box_id: str) -> _Box:
        box = self._find(box_id)
        if not self._suspends:
            raise Unsupported(self.capabilities().why_no_suspend)
        return box

    def _find(self, box_id: str) -> _Box:
        if box_id not in self._boxes:
            raise NotFound(f"the backend has no box {box_id}")
        return self._boxes[box_id]

    def _fail(self, method: str) -> None:
        error = self._failures.pop(method, None)
        if error is not None:
            raise error
