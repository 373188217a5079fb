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
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from boxd.boxes import timers
from boxd.boxes.templates import SETTING
from boxd.errors import BoxdError
from boxd.model.box import TRANSITIONS, Box, BoxState
from boxd.names.spec import parse_spec
from boxd.store.memory import MemoryStore
from tests.harness.mortal import Died
from tests.harness.world import ALICE, World

if TYPE_CHECKING:
    from collections.abc import Coroutine
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
STEADY = (BoxState.RUNNING, BoxState.SUSPENDED)


class Watched(MemoryStore):
    """Looks at every row that is written."""

    def __init__(self) -> None:
        super().__init__()
        self.wrong: list[str] = []

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

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="box-life-"))
        self.runner = asyncio.Runner()
        self.store = Watched()
        self.holds: list[AsyncExitStack] = []
        self.runner.run(self._begin())

    async def _begin(self) -> None:
        (self.root / "images" / "debian" / "rootfs").mkdir(parents=True)
        self.world = World(self.root, store=self.store, suspends=True, templates=self.copies)
        await self._start()

    async def _start(self) -> None:
        await self.world.start()
        await self.world.lifecycle.usage.close()
        await self.world.quiet()

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
        return self.runner.run(self.world.lifecycle.up(OWNER, None, parse_spec(name)))

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

    @rule()
    def reboot(self) -> None:
        """The host goes down without a word."""

        async def work() -> None:
            await self.world.kill()
            await self._let_go()
            await self.world.reboot()
            await self.world.lifecycle.usage.close()

        self.do(work())

    # --- what owners do -----------------------------------------------------------------------

    @rule(
        name=NAMES,
        suffix=st.sampled_from(["", "", "+", "^1h", "+10m", "+^20m+1h"]),
        stays=st.booleans(),
        trouble=TROUBLE,
    )
    def connect(self, name: str, suffix: str, *, stays: bool, trouble: Trouble) -> None:
        """Attaches, to run a command or to stay."""

        async def work() -> None:
            stack, spec = AsyncExitStack(), parse_spec(name + suffix)
            attached = self.world.lifecycle.attach(OWNER, None, spec, why="shell", key_id=None)
            held = await stack.enter_async_context(attached)
            found = await self.store.box(held.box.id)
            assert found is not None
            assert found.name == name
            self.holds.append(stack)
            if not stays:
                await self._let_go()

        self.do(work(), trouble)

    @rule()
    def detach(self) -> None:
        """All go."""
        self.do(self._let_go())

    @rule(name=NAMES, trouble=TROUBLE)
    def suspend(self, name: str, trouble: Trouble) -> None:
        """Asked for; who is attached is not cut off."""
        self.do(self.world.lifecycle.suspend(self.box(name)), trouble)

    @rule(name=NAMES, trouble=TROUBLE)
    def sleep_and_wake(self, name: str, trouble: Trouble) -> None:
        """Asked for, as nobody is attached."""
        self.do(self._let_go())
        self.do(self.world.lifecycle.suspend(self.box(name)))
        self.do(self.world.lifecycle.wake(self.box(name)), trouble)

    @rule(name=NAMES, trouble=TROUBLE)
    def remove(self, name: str, trouble: Trouble) -> None:
        """Asked for."""
        self.do(self.world.lifecycle.remove(self.box(name)), trouble)

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
        self.world.tunnels.shells[box.id] = shells
        self.world.lifecycle.activity.report(box.id, shells)
        self.do(self.world.lifecycle.request(box.id, "auto_suspend", {"on": on}))

    @rule(name=NAMES, trouble=TROUBLE)
    def snapshot(self, name: str, trouble: Trouble) -> None:
        """One more."""
        self.do(self.world.lifecycle.snapshot(self.box(name), None), trouble)

    @rule(trouble=TROUBLE)
    def restore(self, trouble: Trouble) -> None:
        """The latest one."""
        one = self.latest()
        self.do(self.world.lifecycle.restore(self.box(one.box_name), one.name), trouble)

    @rule()
    def remove_a_snapshot(self) -> None:
        """The latest one."""
        self.do(self.world.lifecycle.snapshots.remove(self.latest()))

    @rule(
        name=NAMES,
        child=st.sampled_from(["web", "db+", "kid+", "kid+^1h"]),
        live=st.booleans(),
        trouble=TROUBLE,
    )
    def fork(self, name: str, child: str, *, live: bool, trouble: Trouble) -> None:
        """Of a box or of a snapshot."""
        base = self.box(name) if live else self.latest()
        self.do(self.world.lifecycle.fork(base, None, parse_spec(child)), trouble)

    # --- time ---------------------------------------------------------------------------------

    @rule(span=SPANS, trouble=TROUBLE)
    def time_passes(self, span: timedelta, trouble: Trouble) -> None:
        """And the timers look."""
        self.do(self.world.tick(span), trouble)

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

    async def _check_whole(self) -> None:
        """Rows and host tell the same, once what is due was done."""
        life = self.world.lifecycle._timers
        if life._unsettled or life.doomed:
            await self.world.tick(timedelta(seconds=31))
        assert not life._unsettled
        assert not life.doomed
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


@pytest.mark.parametrize("machine", [BoxLife, CopiedBoxLife])
def test_lives_of_boxes(
    machine: type[BoxLife], monkeypatch: pytest.MonkeyPatch, assert_logs: AssertLogs
) -> None:
    monkeypatch.setattr(timers, "TICK", 1e6)  # the rules look, no loop does
    with assert_logs("."):
        run_state_machine_as_test(
            machine, settings=settings(max_examples=50, stateful_step_count=30, deadline=None)
        )
