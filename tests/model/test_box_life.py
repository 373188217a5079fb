"""Random lives of boxes on fakes, with failing steps, dying daemons and hosts: what always holds.

Every rule is one thing that somebody does, or that happens, to the boxes of one owner. Meanwhile a
step of the host may fail, or the daemon die after some steps. Afterwards the next daemon starts if
this one died, what has to be tried again is, and these hold:

- every change of state is one of the transition table, and a box begins by being made
- there is one box of a name
- nothing is attached to a box that does not run
- a deadline that came is not outlived by a look of the timers
- memory is used at most once, and no box runs that has a memory on the disk
- rows and host tell the same of every box and snapshot that nothing is due for
- what was removed leaves nothing
- a box goes only when somebody has it removed, at its deadline, or when nobody used it for so long;
  none goes because the service ends, starts or is refused something
"""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
from contextlib import AsyncExitStack, suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from boxd.boxes.lifecycle.holds import AttachRequest
from boxd.boxes.lifecycle.templates import SETTING
from boxd.boxes.state.requests import BoxRequest
from boxd.boxes.timing import timers
from boxd.boxes.timing.policy import SHIPPED, Policy
from boxd.errors import BoxdError
from boxd.model.box import TRANSITIONS, Box, BoxState
from boxd.model.presence import Presence
from boxd.names.spec import parse_spec
from tests.doubles.control_store import MemoryStore
from tests.harness.service.mortal import Died
from tests.harness.simulation.world import ALICE, World

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Unpack

    from boxd.model.box import BoxChanges
    from boxd.model.snapshot import Snapshot
    from tests.plugins.strict_logs import AssertLogs

OWNER = ALICE.owner
NAMES = st.sampled_from(["web", "db"])
SPANS = st.sampled_from([timedelta(seconds=s) for s in (1, 20, 31, 121, 700, 4000, 11_000)])
FAILING = st.sampled_from(
    [
        "backend.create",
        "backend.start",
        "backend.stop",
        "backend.destroy",
        "backend.freeze",
        "backend.save_memory",
        "backend.thaw",
        "backend.resume",
        "backend.snapshot",
        "backend.restore_snapshot",
        "backend.clone",
        "tunnel.open",
        "tunnel.hello",
        "drive.prepare",
        "drive.attach",
    ]
)
Trouble: TypeAlias = "str | int | None"
"""What happens meanwhile: a step fails, the daemon dies after so many steps, or nothing."""
TROUBLE = st.one_of(st.none(), st.none(), FAILING, st.integers(0, 45))
FORGOTTEN = timedelta(minutes=2)
"""A daemon that is killed forgets no more of the use of a box."""
STEADY = (BoxState.RUNNING, BoxState.SUSPENDED)


class Watched(MemoryStore):
    """Looks at every row that is written."""

    def __init__(self) -> None:
        super().__init__()
        self.wrong: list[str] = []
        self.may_go: Callable[[Box], bool] = lambda _: True

    async def remove_box(self, box_id: str) -> None:
        """A box that was made does not go without a reason."""
        box = await self.box(box_id)
        if box is not None and box.state is not BoxState.CREATING and not self.may_go(box):
            self.wrong.append(f"{box.ref} was lost, {box.state}")
        await super().remove_box(box_id)

    async def add_box(self, box: Box) -> None:
        """A box begins by being made."""
        if box.state is not BoxState.CREATING:
            self.wrong.append(f"{box.ref} began {box.state}")
        await super().add_box(box)

    async def change_state(
        self,
        box_id: str,
        before: BoxState,
        after: BoxState,
        detail: str = "",
        **changes: Unpack[BoxChanges],
    ) -> Box:
        """A change of state is one of the table."""
        box = await super().change_state(box_id, before, after, detail, **changes)
        if (before, after) not in TRANSITIONS:
            self.wrong.append(f"{box.ref} went from {before} to {after}")
        return box


class BoxLife(RuleBasedStateMachine):
    """See the module."""

    copies = False
    """New boxes are copies of templates where there are some."""
    suspends = True
    """The host can suspend boxes."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="box-life-"))
        self.runner = asyncio.Runner()
        self.store = Watched()
        self.store.may_go = self._may_go
        self.holds: list[AsyncExitStack] = []
        self.shells: dict[str, int] = {}
        """What agents tell, by box id."""
        self.elapsed = timedelta()
        """While daemons lived."""
        self.used: dict[str, timedelta] = {}
        """What had elapsed when a box was last seen in use, or made."""
        self.removed: set[str] = set()
        """Names of boxes that somebody is having removed."""
        self.only_stopping = False
        self.runner.run(self._begin())

    async def _begin(self) -> None:
        (self.root / "images" / "debian" / "rootfs").mkdir(parents=True)
        self.world = World(
            self.root, store=self.store, suspends=self.suspends, templates=self.copies
        )
        await self._start()

    async def _start(self) -> None:
        self.only_stopping = False
        await self.world.start()
        await self.world.lifecycle.usage.close()
        await self.world.quiet()
        await self.world.look()  # the agents have told nothing yet
        for box_id, shells in self.shells.items():
            self._report(box_id, shells)

    def _report(self, box_id: str, shells: int) -> None:
        self.world.tunnels.shells[box_id] = shells
        self.world.lifecycle.activity.report(box_id, Presence(shells))

    def _may_go(self, box: Box) -> bool:
        """Whether there is a reason for it to go."""
        if box.name in self.removed:
            return True
        if self.only_stopping:
            return False
        if box.deadline is not None and box.deadline <= self.world.clock.now():
            return True
        if box.durable or not box.auto_suspend or self.shells.get(box.id):
            return False
        life = self.world.lifecycle
        if life.attachments.count(box.id) or life.activity.pinned_until(box):
            return False
        unused = self.elapsed - self.used.get(box.id, self.elapsed)
        stays = SHIPPED.idle_reap if self.suspends or box.grace is None else box.grace
        return unused >= stays - FORGOTTEN

    def do(self, work: Coroutine[object, object, object], trouble: Trouble = None) -> None:
        """Does it to its end, or to that of the daemon; then the next one lives."""
        self.runner.run(self._do(work, trouble))

    async def _do(self, work: Coroutine[object, object, object], trouble: Trouble) -> None:
        if isinstance(trouble, str):
            self.world.fail_at(trouble)
        self.world.life.end_after(trouble if isinstance(trouble, int) else None)
        try:
            with suppress(BoxdError, Died):
                await work
            await self.world.quiet()
        finally:
            self.world.life.end_after(None)
            self.world.heal()
            if self.world.life.dead:
                await self.world.kill()
                await self._let_go()
                await self._start()

    async def _let_go(self) -> None:
        holds, self.holds = self.holds, []
        for hold in holds:
            await hold.aclose()

    def box(self, name: str) -> Box:
        """The box of a name, which is made if it is not there."""
        boxes = self.runner.run(self.store.boxes(OWNER))
        for box in boxes:
            if box.name == name:
                return box
        return self.runner.run(self.world.lifecycle.up(BoxRequest(OWNER, None, parse_spec(name))))

    def latest(self) -> Snapshot:
        """A snapshot, which is taken if there is none; everybody goes before."""
        found = self.runner.run(self.store.snapshots(OWNER))
        if found:
            return found[-1]
        self.runner.run(self._let_go())
        return self.runner.run(self.world.lifecycle.snapshot(self.box("web"), None))

    # --- what happens to daemon and host ------------------------------------------------------

    @rule(boxes=st.booleans(), trouble=TROUBLE)
    def restart(self, *, boxes: bool, trouble: Trouble) -> None:
        """An orderly end, with all boxes or without, and a new daemon."""

        async def work() -> None:
            await self._let_go()
            await self.world.close(stop_boxes=boxes)

        async def next_daemon() -> None:
            await self.world.kill()
            await self._start()

        self.do(work(), trouble)
        self.do(next_daemon())

    @rule(trouble=TROUBLE)
    def down(self, trouble: Trouble) -> None:
        """A killed daemon's boxes are stopped by one that knows nothing of the service's times."""

        async def other_times() -> None:
            await self.world.kill()
            await self._let_go()
            self.world.policy = Policy(timedelta(seconds=1), timedelta(seconds=1))
            self.world._make_daemon()
            self.world.policy = SHIPPED

        async def work() -> None:
            try:
                await self.world.start(stopping=True)
                await self.world.look()
                await self.world.close(stop_boxes=True)
            except* Died:  # alone, or in tasks that adopt boxes
                pass

        async def next_daemon() -> None:
            await self.world.kill()
            await self._start()

        self.only_stopping = True
        self.do(other_times())
        self.do(work(), trouble)
        self.do(next_daemon())

    @rule()
    def reboot(self) -> None:
        """The host goes down without a word."""

        async def work() -> None:
            await self.world.kill()
            await self._let_go()
            self.shells.clear()
            await self.world.reboot()
            await self.world.lifecycle.usage.close()

        self.do(work())

    # --- what owners do -----------------------------------------------------------------------

    @rule(
        name=NAMES,
        suffix=st.sampled_from(["", "", "+", "+:unbuilt", "+:python", "^1h", "+10m", "+^20m+1h"]),
        stays=st.booleans(),
        trouble=TROUBLE,
    )
    def connect(self, name: str, suffix: str, *, stays: bool, trouble: Trouble) -> None:
        """Attaches, to run a command or to stay."""

        async def work() -> None:
            stack, spec = AsyncExitStack(), parse_spec(name + suffix)
            attached = self.world.lifecycle.attach(
                AttachRequest(BoxRequest(OWNER, None, spec), why="shell", key_id=None)
            )
            held = await stack.enter_async_context(attached)
            found = await self.store.box(held.box.id)
            assert found is not None
            assert found.name == name
            self.holds.append(stack)
            if not stays:
                await self._let_go()

        fresh = suffix.startswith("+") and not suffix.startswith("+1")
        self.removed = {name} if fresh and ":" not in suffix else set()
        self.do(work(), trouble)
        self.removed = set()

    @rule()
    def detach(self) -> None:
        """All go."""
        self.do(self._let_go())

    @precondition(lambda self: self.suspends)
    @rule(name=NAMES, trouble=TROUBLE)
    def suspend(self, name: str, trouble: Trouble) -> None:
        """Asked for; who is attached is not cut off."""
        self.do(self.world.lifecycle.suspend(self.box(name)), trouble)

    @precondition(lambda self: self.suspends)
    @rule(name=NAMES, trouble=TROUBLE)
    def sleep_and_wake(self, name: str, trouble: Trouble) -> None:
        """Asked for, as nobody is attached."""
        self.do(self._let_go())
        self.do(self.world.lifecycle.suspend(self.box(name)))
        self.do(self.world.lifecycle.wake(self.box(name)), trouble)

    @rule(name=NAMES, trouble=TROUBLE)
    def remove(self, name: str, trouble: Trouble) -> None:
        """Asked for."""
        box, self.removed = self.box(name), {name}
        self.do(self.world.lifecycle.remove(box), trouble)
        self.removed = set()

    @rule(name=NAMES, span=st.one_of(st.none(), SPANS), trouble=TROUBLE)
    def pin(self, name: str, span: timedelta | None, trouble: Trouble) -> None:
        """Or take the pin away."""
        box = self.box(name)
        if span is None:
            self.do(self.world.lifecycle.unpin(box), trouble)
        else:
            self.do(self.world.lifecycle.pin(box, span, ""), trouble)

    @rule(name=NAMES, on=st.booleans(), shells=st.integers(0, 2))
    def tell(self, name: str, shells: int, *, on: bool) -> None:
        """The agent tells of shells, and asks not to be suspended, or to be."""
        box = self.box(name)
        if box.state is BoxState.RUNNING:
            self.shells[box.id] = shells
            self._report(box.id, shells)
        self.do(self.world.lifecycle.request(box.id, "auto_suspend", {"on": on}))

    @precondition(lambda self: self.suspends)
    @rule(name=NAMES, trouble=TROUBLE)
    def snapshot(self, name: str, trouble: Trouble) -> None:
        """One more."""
        self.do(self.world.lifecycle.snapshot(self.box(name), None), trouble)

    @precondition(lambda self: self.suspends)
    @rule(trouble=TROUBLE)
    def restore(self, trouble: Trouble) -> None:
        """The latest one."""
        one = self.latest()
        self.do(self.world.lifecycle.restore(self.box(one.box_name), one.name), trouble)

    @precondition(lambda self: self.suspends)
    @rule()
    def remove_a_snapshot(self) -> None:
        """The latest one."""
        self.do(self.world.lifecycle.snapshots.remove(self.latest()))

    @precondition(lambda self: self.suspends)
    @rule(
        name=NAMES,
        child=st.sampled_from(["web", "db+", "kid+", "kid+^1h"]),
        live=st.booleans(),
        trouble=TROUBLE,
    )
    def fork(self, name: str, child: str, *, live: bool, trouble: Trouble) -> None:
        """Of a box or of a snapshot."""
        base = self.box(name) if live else self.latest()
        self.removed = {parse_spec(child).name} if "+" in child else set()
        self.do(self.world.lifecycle.fork(base, None, parse_spec(child)), trouble)
        self.removed = set()

    # --- time ---------------------------------------------------------------------------------

    @rule(span=SPANS, trouble=TROUBLE)
    def time_passes(self, span: timedelta, trouble: Trouble) -> None:
        """And the timers look. What is kept in memory was written meanwhile."""
        self.elapsed += span
        self.world.clock.turn(span)
        self.do(self.world.lifecycle._due_actions.upkeep())
        self.do(self.world.look(), trouble)

    @rule(by=SPANS, back=st.booleans())
    def the_clock_is_set(self, by: timedelta, *, back: bool) -> None:
        """The timers look again."""
        self.world.clock.set(-by if back else by)
        self.do(self.world.look())

    # --- what always holds --------------------------------------------------------------------

    @invariant()
    def all_is_well(self) -> None:
        """See the module."""
        self.runner.run(self._check())

    async def _check(self) -> None:
        assert self.store.wrong == []
        boxes = {box.id: box for box in await self.store.all_boxes()}
        assert len({box.ref for box in boxes.values()}) == len(boxes)
        for one in await self.world.backend.list():
            assert one.frozen or not (one.running and one.memory), "runs beside its memory"
            saved = self.world.backend.memories.count(one.box_id)
            assert self.world.backend.resumes(one.box_id) <= saved, "a memory was used twice"
        for box in boxes.values():
            held = self.world.lifecycle.attachments.count(box.id)
            assert box.state is BoxState.RUNNING or not held
        await self._check_whole()
        await self._look_around()

    async def _look_around(self) -> None:
        """What is in use now is, for what may go later."""
        boxes = {box.id: box for box in await self.store.all_boxes()}
        running = {one for one, box in boxes.items() if box.state is BoxState.RUNNING}
        self.shells = {one: shells for one, shells in self.shells.items() if one in running}
        self.used = {one: self.used.get(one, self.elapsed) for one in boxes}
        for one in running:
            held = self.world.lifecycle.attachments.count(one)
            if self.suspends or held or self.shells.get(one):
                self.used[one] = self.elapsed

    async def _check_whole(self) -> None:
        """Rows and host tell the same, once what is due was done."""
        life = self.world.lifecycle._timers
        if life._unsettled or life._half_removed:
            await self.world.tick(timedelta(seconds=31))
        assert not life._unsettled
        assert not life._half_removed
        await self.world.look()
        boxes = {box.id: box for box in await self.store.all_boxes()}
        now = self.world.clock.now()
        present = {one.box_id: one for one in await self.world.backend.list()}
        assert present.keys() == boxes.keys()
        for box in boxes.values():
            found = present[box.id]
            assert box.deadline is None or box.deadline > now
            assert box.state in STEADY
            assert box.step == 0
            assert found.running is (box.state is BoxState.RUNNING)
            assert found.memory is box.memory
            assert not found.frozen
            assert (box.id in self.world.tunnels.open_for) is found.running
        directories = self.root / "boxes"
        if directories.exists():
            assert {path.name for path in directories.iterdir()} == boxes.keys()
        snapshots = await self.store.all_snapshots()
        kept = {one.id for one in snapshots if one.ready} | await self.templates()
        assert kept <= set(await self.world.backend.snapshots())

    async def templates(self) -> set[str]:
        """What new boxes may be copied from: ids on the host."""
        return {one["id"] for one in json.loads(await self.store.setting(SETTING) or "[]")}

    def teardown(self) -> None:
        """When all is removed, nothing is left."""
        try:
            self.runner.run(self._remove_all())
        finally:
            self.runner.close()
            shutil.rmtree(self.root)

    async def _remove_all(self) -> None:
        await self._let_go()
        self.store.may_go = lambda _: True
        for box in await self.store.all_boxes():
            await self.world.lifecycle.remove(box)
        for one in await self.store.all_snapshots():
            await self.world.lifecycle.snapshots.remove(one)
        await self.world.quiet()
        await self.world.close()
        await self.world.kill()
        await self._start()
        left = await self.world.left_overs()
        assert left.keys() <= {"snapshots of the host"}
        assert set(await self.world.backend.snapshots()) == await self.templates()
        await self.world.close()


class CopiedBoxLife(BoxLife):
    """The same where new boxes are copies."""

    copies = True


class AwakeBoxLife(BoxLife):
    """The same where no box can be suspended, so that unused ones are removed."""

    suspends = False


@pytest.mark.parametrize("machine", [BoxLife, CopiedBoxLife, AwakeBoxLife])
def test_lives_of_boxes(
    machine: type[BoxLife], monkeypatch: pytest.MonkeyPatch, assert_logs: AssertLogs
) -> None:
    monkeypatch.setattr(timers, "TICK", 1e6)  # the rules look, no loop does
    with assert_logs("."):
        run_state_machine_as_test(
            machine, settings=settings(max_examples=50, stateful_step_count=30, deadline=None)
        )
