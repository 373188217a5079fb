"""The console of administrators on fakes: what it shows, does, refuses and writes down."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from boxd.boxes.state.requests import BoxAccess
from boxd.errors import Forbidden, InvalidShare, NotFound, QuotaExceeded, Unavailable
from boxd.operations.shared.audits import MAX_LINE
from boxd.principal import Principal
from boxd.ssh.admin.console import CONSOLE, run_audited
from tests.harness.console import ENDPOINT, Typed
from tests.harness.wait import until

if TYPE_CHECKING:
    from boxd.model.account import Audit
    from boxd.operations import Operations
    from boxd.ssh.cli.command import Result
    from tests.harness.world import World
    from tests.plugins.strict_logs import AssertLogs


def _owner(letter: str) -> str:
    return "SHA256:" + 43 * letter


ANN = Principal(_owner("A"), None, "ssh_key")
BEN = Principal(_owner("B"), None, "ssh_key")
ADMIN = Principal(_owner("X"), None, "admin")
NOBODY = _owner("N")


async def sudo(world: World, line: str | None, principal: Principal = ADMIN) -> Result:
    """One command line of an administrator, some time after the one before."""
    world.clock.turn(timedelta(seconds=1))
    return await run_audited(
        line,
        principal=principal,
        operations=world.operations,
        endpoint=ENDPOINT,
        now=world.clock.now(),
        stdio=Typed(),
    )


async def done(world: World, line: str) -> str:
    """What a command wrote that did what it was asked for."""
    result = await sudo(world, line)
    assert result.status == 0, result.stderr
    return result.stdout


async def refused(world: World, line: str, status: int = 1) -> str:
    """What a command said that did nothing."""
    result = await sudo(world, line)
    assert (result.status, result.stdout) == (status, "")
    return result.stderr


async def hold(ops: Operations, who: Principal, ref: str) -> None:
    """Is attached to a box until that is ended."""
    async with ops.boxes.attach(who, BoxAccess(ref, kind="reference", why="x")):
        await asyncio.Event().wait()


async def last(world: World) -> Audit:
    """The newest entry of the audit."""
    [entry] = await world.store.audits(1)
    return entry


async def test_every_command_has_stable_columns_and_json(sleepy: World) -> None:
    await sleepy.operations.boxes.up(ANN, "web")
    await sleepy.operations.keys.create_key(ANN, "laptop", scope=None, ttl=None)
    columns = {
        "owners": "OWNER TIER BOXES RUNNING BYTES LAST SEEN BLOCKED",
        "ls": "OWNER NAME ID STATE ATTACHED IMAGE FLAVOR AGE DEADLINE NEXT",
        f"suspend {ANN.owner}:web": "OWNER NAME STATE",
        f"resume {ANN.owner}:web": "OWNER NAME STATE",
        "tier ls": "TIER OWNERS BOXES RUNNING CPUS MEM MiB DISK MiB SNAPSHOTS KEYS SHARES"
        " WORKSPACES DEADLINE",
        f"keys ls {ANN.owner}": "NAME SCOPE CREATED EXPIRES LAST USED",
        "stat": "WHAT USED LIMIT",
        "audit": "TIME ADMIN STATUS OWNER COMMAND",
    }
    lines = {
        f"tier set {ANN.owner} large": "has the limits of tier large",
        f"kick {ANN.owner}:web": "ended 0 of web",
        f"block {ANN.owner}": "is blocked; ended 0",
        f"unblock {ANN.owner}": "is not blocked",
        f"keys rm {ANN.owner} laptop": "removed laptop",
        "drain": "no new boxes",
        "drain --cancel": "new work is accepted again",
        f"rm {ANN.owner}:web": "removed web",
        "help": "ssh sudo@host owners",
    }
    for line, header in columns.items():
        shown = await done(sleepy, line)
        assert shown.splitlines()[0].split() == header.split(), line
        assert isinstance(json.loads(await done(sleepy, f"{line} --json")), list | dict)
    for line, said in lines.items():
        assert said in await done(sleepy, line)
    words = {" ".join(command.words) for command in CONSOLE.commands}
    tried = {line for line in [*columns, *lines] for word in words if line.startswith(word)}
    assert tried == {*columns, *lines}
    assert all(any(line.startswith(word) for line in tried) for word in words)


async def test_json_of_what_acts(world: World) -> None:
    box = await world.operations.boxes.up(ANN, "ws1/web")
    await world.operations.keys.create_key(ANN, "laptop", scope=None, ttl=None)
    documents = {
        f"kick {box.id[:8]}": {"box": box.id, "owner": ANN.owner, "ended": 0},
        f"tier set {ANN.owner} small": {"owner": ANN.owner, "tier": "small"},
        f"block {ANN.owner}": {"owner": ANN.owner, "blocked": True, "ended": 0},
        f"unblock {ANN.owner}": {"owner": ANN.owner, "blocked": False},
        f"keys rm {ANN.owner} laptop": [{"removed": "laptop"}],
        f"rm {ANN.owner}:ws1/web": [{"removed": box.id, "owner": ANN.owner}],
        "drain": {"draining": True},
        "drain --cancel": {"draining": False},
    }
    for line, document in documents.items():
        assert json.loads(await done(world, f"{line} --json")) == document
    wrong = await sudo(world, "rm 0 --json")
    assert (wrong.status, json.loads(wrong.stderr)) == (1, {"error": "no box '0'; see: ls"})


async def test_it_sees_and_changes_what_everybody_has(sleepy: World) -> None:
    mine = await sleepy.operations.boxes.up(ANN, "web")
    await sleepy.operations.boxes.up(ANN, "ws1/db")
    theirs = await sleepy.operations.boxes.up(BEN, "web")
    came = sleepy.clock.now()
    listed = json.loads(await done(sleepy, "ls --json"))
    refs = sorted((one["owner"], one["ref"]) for one in listed)
    assert refs == [(ANN.owner, "web"), (ANN.owner, "ws1/db"), (BEN.owner, "web")]
    assert "ssh_dest" not in listed[0]
    only = json.loads(await done(sleepy, f"ls --owner {BEN.owner} --json"))
    assert [one["id"] for one in only] == [theirs.id]
    await done(sleepy, f"suspend {mine.id}")
    owners = json.loads(await done(sleepy, "owners --json"))
    shown = [(one["owner"], one["boxes"], one["running"], one["tier"]) for one in owners]
    assert shown == [(ANN.owner, 2, 1, "default"), (BEN.owner, 1, 1, "default")]
    assert owners[0]["last_seen"] == came.isoformat()
    await done(sleepy, f"rm {mine.id[:31]} {BEN.owner}:web")
    assert [box.ref for box in await sleepy.store.all_boxes()] == ["ws1/db"]
    assert "running boxes" in await done(sleepy, "stat")


async def test_references_that_mean_no_one_box(world: World) -> None:
    boxes = [await world.operations.boxes.up(who, "web") for who in (ANN, BEN)]
    prefix = next(d for d in "0123456789abcdef" if all(not b.id.startswith(d) for b in boxes))
    assert "no box" in await refused(world, f"rm {prefix}")
    assert "no box" in await refused(world, f"rm {NOBODY}:web")
    assert "no box" in await refused(world, f"kick {ANN.owner}:{boxes[1].id}")
    assert "give its id" in await refused(world, "suspend web", 2)
    assert "fingerprint" in await refused(world, "kick SHA256:x:web", 2)
    assert len(await world.store.all_boxes()) == 2


async def test_an_ambiguous_reference_names_the_candidates(world: World) -> None:
    boxes = [await world.operations.boxes.up(ANN, f"box{number}") for number in range(17)]
    first = {box.id[0]: box for box in boxes}
    shared = next(d for d in first if sum(box.id.startswith(d) for box in boxes) > 1)
    text = await refused(world, f"rm {shared}")
    assert "ambiguous" in text
    assert first[shared].id in text
    assert f"{ANN.owner}:{first[shared].ref}" in text
    assert len(await world.store.all_boxes()) == 17


@pytest.mark.parametrize(
    ("line", "status", "said"),
    [
        ("", 0, ""),
        ("help nonsense", 2, "no command 'nonsense'"),
        ("dance", 2, "no command 'dance'"),
        ("tier", 2, "tier needs one of: tier ls, tier set"),
        ("rm", 2, "required"),
        ("rm 'x", 2, "cannot be read"),
        ("ls --owner web", 2, "not the fingerprint"),
        (f"tier set {NOBODY} golden", 1, "no tier 'golden'; known: default, large, small"),
        (f"keys rm {NOBODY} x", 1, "no API key 'x'"),
        ("audit -n 0", 2, "from 1 to 10000"),
        ("audit -n 10001", 2, "from 1 to 10000"),
        ("audit -n x", 2, "invalid int"),
        ("block web", 2, "not the fingerprint"),
        ("ls \x1b]0;x\x07", 2, "unrecognized arguments: \\x1b]0;x\\x07"),
    ],
)
async def test_what_makes_no_sense_is_refused_and_written_down(
    world: World, line: str, status: int, said: str
) -> None:
    result = await sudo(world, line)
    assert result.status == status
    assert said in result.stderr
    entry = await last(world)
    assert (entry.admin, entry.status) == (ADMIN.owner, status)
    assert entry.line == (line.replace("\x1b", "\\x1b").replace("\x07", "\\x07") or "help")


async def test_it_is_written_down_before_it_is_done(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    box = await world.operations.boxes.up(ANN, "web")
    seen: list[Audit] = []

    async def remove(_: object) -> None:
        seen.append(await last(world))

    monkeypatch.setattr(world.lifecycle, "remove", remove)
    await done(world, f"rm {box.id}")
    [before] = seen
    assert (before.line, before.status, before.owners) == (f"rm {box.id}", None, ())
    after = await last(world)
    assert (after.id, after.status, after.owners) == (before.id, 0, (ANN.owner,))


async def test_what_cannot_be_written_down_is_not_done(
    world: World, monkeypatch: pytest.MonkeyPatch, assert_logs: AssertLogs
) -> None:
    box = await world.operations.boxes.up(ANN, "web")

    async def fail(*_: object) -> None:
        raise Unavailable("the database does not answer")

    with monkeypatch.context() as patch:
        patch.setattr(world.store, "add_audit", fail)
        text = await refused(world, f"rm {box.id}")
        assert (
            "nothing was done, because the audit cannot be written: the database does not" in text
        )
        shown = await sudo(world, "ls --json")
        assert "nothing was done" in json.loads(shown.stderr)["error"]
    assert [one.id for one in await world.store.all_boxes()] == [box.id]
    with monkeypatch.context() as patch, assert_logs("end of a command is not in the audit"):
        patch.setattr(world.store, "finish_audit", fail)
        await done(world, f"rm {box.id}")
    assert (await last(world)).status is None
    assert await world.store.all_boxes() == []


async def test_no_verb_is_done_without_an_entry(world: World) -> None:
    ops = world.operations
    box = await ops.boxes.up(ANN, "web")
    calls = {
        "fleet_owners": (),
        "fleet_boxes": (),
        "fleet_remove": (box.id,),
        "fleet_suspend": (box.id,),
        "fleet_resume": (box.id,),
        "fleet_kick": (box.id,),
        "fleet_tiers": (),
        "fleet_set_tier": (ANN.owner, "large"),
        "fleet_block": (ANN.owner,),
        "fleet_unblock": (ANN.owner,),
        "fleet_keys": (ANN.owner,),
        "fleet_remove_key": (ANN.owner, "x"),
        "fleet_levels": (),
        "fleet_audits": (1,),
    }
    families = (ops.fleet, ops.owners)
    verbs = {name for one in families for name in dir(one) if name.startswith("fleet_")}
    assert verbs == {*calls, "fleet_drain"}
    async with ops.fleet.audited(ADMIN, "over") as deed:
        pass
    for p in (ADMIN, deed.principal, ANN, Principal(ANN.owner, None, "api_key")):
        for verb, arguments in calls.items():
            family = ops.fleet if hasattr(ops.fleet, verb) else ops.owners
            with pytest.raises(Forbidden):
                await getattr(family, verb)(p, *arguments)
        with pytest.raises(Forbidden):
            ops.fleet.fleet_drain(p)
    with pytest.raises(Forbidden):
        async with ops.fleet.audited(ANN, "ls"):
            pass
    assert [one.id for one in await world.store.all_boxes()] == [box.id]
    await ops.boxes.up(ANN, "another")


async def test_a_long_line_is_written_down_in_part_and_not_done(world: World) -> None:
    box = await world.operations.boxes.up(ANN, "web")
    line = f"rm {box.id} " + "0" * (MAX_LINE - 36)
    assert len(line) == MAX_LINE
    assert (await sudo(world, line)).status == 1, "one reference is wrong, the other was right"
    assert (await last(world)).line == line
    assert await world.store.all_boxes() == []
    box = await world.operations.boxes.up(ANN, "web")
    text = await refused(world, f"rm {box.id} " + "\x01" * (MAX_LINE // 4), 2)
    assert f"{MAX_LINE} bytes" in text
    entry = await last(world)
    assert (len(entry.line), entry.status) == (MAX_LINE, 2)
    assert [one.id for one in await world.store.all_boxes()] == [box.id]


async def test_tokens_that_were_pasted_are_not_kept(world: World) -> None:
    await sudo(world, f"keys rm {ANN.owner} svc_{'0' * 40} svcs_{'f' * 32}")
    assert (await last(world)).line == f"keys rm {ANN.owner} svc_*** svcs_***"


async def test_the_audit_shows_the_newest_last_and_whom_it_was_about(world: World) -> None:
    boxes = [await world.operations.boxes.up(who, "web") for who in (ANN, BEN)]
    lines = [f"kick {boxes[0].id}", f"keys ls {BEN.owner}", f"rm {boxes[0].id} {boxes[1].id}"]
    for line in lines:
        await done(world, line)
    shown = json.loads(await done(world, "audit --json"))
    assert [one["command"] for one in shown] == [*lines, "audit --json"]
    both = sorted((ANN.owner, BEN.owner))
    assert [one["owners"] for one in shown] == [[ANN.owner], [BEN.owner], both, []]
    assert [one["status"] for one in shown] == [0, 0, 0, None]
    assert {one["admin"] for one in shown} == {ADMIN.owner}
    about = json.loads(await done(world, f"audit --owner {BEN.owner} --json"))
    assert [one["command"] for one in about] == lines[1:]
    assert len((await done(world, "audit -n 2")).splitlines()) == 3


async def test_a_tier_counts_from_the_next_box_on(world: World) -> None:
    await done(world, f"tier set {ANN.owner} small")
    for number in range(2):
        await world.operations.boxes.up(ANN, f"box{number}")
    with pytest.raises(QuotaExceeded, match="2 running boxes"):
        await world.operations.boxes.up(ANN, "more")
    tiers = json.loads(await done(world, "tier ls --json"))
    assert [(one["tier"], one["owners"]) for one in tiers] == [
        ("default", 0),
        ("large", 0),
        ("small", 1),
    ]
    assert tiers[2]["boxes"] == 5
    await done(world, f"tier set {ANN.owner} default")
    await world.operations.boxes.up(ANN, "more")


async def test_who_is_blocked_gets_in_nowhere(world: World) -> None:
    ops = world.operations
    box = await ops.boxes.up(ANN, "web")
    _, key = await ops.keys.create_key(ANN, "laptop", scope=None, ttl=None)
    _, token = await ops.shares.create_share(ANN, "web", ttl=None)
    holder = await ops.shares.principal_of_share(token)
    held = [asyncio.create_task(hold(ops, who, box.id)) for who in (ANN, holder, BEN)]
    await until(lambda: world.lifecycle.attachments.count(box.id) == 2)
    assert json.loads(await done(world, f"block {ANN.owner} --json"))["ended"] == 2
    ends = await asyncio.gather(*held, return_exceptions=True)
    assert [type(end) for end in ends] == [Forbidden, Forbidden, NotFound]
    assert str(ends[0]) == "this account is blocked: ask the operator of this service"
    for who in (ANN, holder):
        with pytest.raises(Forbidden, match="blocked"):
            async with ops.boxes.attach(who, BoxAccess(box.id, kind="reference", why="x")):
                pass
    with pytest.raises(Forbidden, match="blocked"):
        ops.callers.check_admitted(ANN)
    with pytest.raises(Forbidden, match="blocked"):
        await ops.keys.principal_of_key(key.reveal())
    with pytest.raises(InvalidShare):
        await ops.shares.principal_of_share(token)
    ops.callers.check_admitted(BEN)
    shown = json.loads(await done(world, "owners --json"))
    assert [one["blocked"] is None for one in shown] == [False]
    await world.restart()
    ops = world.operations
    with pytest.raises(Forbidden, match="blocked"):
        await ops.keys.principal_of_key(key.reveal())
    await done(world, f"unblock {ANN.owner}")
    await done(world, f"unblock {ANN.owner}")
    assert (await ops.keys.principal_of_key(key.reveal())).owner == ANN.owner
    assert await ops.shares.principal_of_share(token) == holder
    async with ops.boxes.attach(ANN, BoxAccess(box.id, kind="reference", why="x")):
        pass


async def test_a_kick_ends_all_that_holds_the_box(world: World) -> None:
    ops = world.operations
    kicked, other = await ops.boxes.up(ANN, "web"), await ops.boxes.up(ANN, "other")
    held = [asyncio.create_task(hold(ops, ANN, ref)) for ref in ("web", "web", "other")]
    count = world.lifecycle.attachments.count
    await until(lambda: count(kicked.id) + count(other.id) == 3)
    assert json.loads(await done(world, f"kick {kicked.id} --json"))["ended"] == 2
    for task in held[:2]:
        with pytest.raises(Forbidden, match="an administrator of this service ended"):
            await task
    assert (count(kicked.id), count(other.id)) == (0, 1)
    held[2].cancel()
    await asyncio.wait(held)
    assert {box.state for box in await world.store.all_boxes()} == {"running"}


async def test_administrators_cannot_be_blocked(world: World) -> None:
    world.administrators.add(ADMIN.owner)
    assert "is an administrator" in await refused(world, f"block {ADMIN.owner}")
    world.operations.callers.check_admitted(ADMIN)
    world.administrators.clear()
    await done(world, f"block {ADMIN.owner}")


async def test_drained_it_takes_no_new_work(world: World) -> None:
    ops = world.operations
    box = await ops.boxes.up(ANN, "web")
    async with ops.boxes.attach(ANN, BoxAccess("web", kind="spec", why="x")):
        await done(world, "drain")
        for attaching in (
            ops.boxes.attach(ANN, BoxAccess("web", kind="spec", why="x")),
            ops.boxes.attach(ANN, BoxAccess("new", kind="spec", why="x")),
            ops.boxes.attach(ANN, BoxAccess(box.id, kind="reference", why="x")),
        ):
            with pytest.raises(Unavailable, match="no new work"):
                async with attaching:
                    pass
        for verb in (
            ops.boxes.up(ANN, "web"),
            ops.boxes.resume(ANN, "web"),
            ops.snapshots.fork(ANN, "web", "copy"),
        ):
            with pytest.raises(Unavailable, match="no new work"):
                await verb
        assert [one.id for one in await ops.boxes.list_boxes(ANN)] == [box.id]
        stat = {one["what"]: one["used"] for one in json.loads(await done(world, "stat --json"))}
        assert (stat["draining"], stat["attachments"]) == (True, 1)
        assert (await done(world, "stat")).splitlines()[-1].split() == ["draining", "yes", "-"]
    await done(world, "drain --cancel")
    await ops.boxes.up(ANN, "new")
