"""The administrators' console with fakes: output, effects, errors and audit."""

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
from tests.harness.ssh.console import ENDPOINT, Typed
from tests.harness.wait import until

if TYPE_CHECKING:
    from boxd.model.account import Audit
    from boxd.operations import Operations
    from boxd.ssh.cli.command import Result
    from tests.harness.simulation.world import World
    from tests.plugins.strict_logs import AssertLogs


def _owner(letter: str) -> str:
    return "SHA256:" + 43 * letter


ANN = Principal(_owner("A"), None, "ssh_key")
BEN = Principal(_owner("B"), None, "ssh_key")
ADMIN = Principal(_owner("X"), None, "admin")
NOBODY = _owner("N")


async def sudo(world: World, line: str | None, principal: Principal = ADMIN) -> Result:
    """Run one command line of an administrator, a second after the last one."""
    world.clock.turn(timedelta(seconds=1))
    return await run_audited(
        line,
        principal=principal,
        operations=world.operations,
        endpoint=ENDPOINT,
        now=world.clock.now(),
        stdio=Typed(),
    )


async def succeed(world: World, line: str) -> str:
    """Run a command that must succeed, and return its output."""
    result = await sudo(world, line)
    assert result.status == 0, result.stderr
    return result.stdout


async def fail(world: World, line: str, status: int = 1) -> str:
    """Run a command that must fail, and return its error text."""
    result = await sudo(world, line)
    assert (result.status, result.stdout) == (status, "")
    return result.stderr


async def hold(ops: Operations, who: Principal, ref: str) -> None:
    """Attach to a box until the attachment is ended."""
    async with ops.boxes.attach(who, BoxAccess(ref, kind="reference", why="x")):
        await asyncio.Event().wait()


async def newest_entry(world: World) -> Audit:
    """Return the newest entry of the audit."""
    [entry] = await world.store.audits(1)
    return entry


async def test_every_command_has_stable_columns_and_json(sleepy: World) -> None:
    await sleepy.operations.boxes.up(ANN, "web")
    await sleepy.operations.keys.create_key(ANN, "laptop", scope=None, ttl=None)
    columns = {
        "owners": "OWNER TIER BOXES RUNNING BYTES LAST SEEN BLOCKED NAME",
        "ls": "OWNER NAME ID STATE ATTACHED IMAGE FLAVOR AGE DEADLINE NEXT REMOVAL",
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
        f"kick {ANN.owner}:web": "ended 0 attachments of web",
        f"block {ANN.owner}": "is blocked; ended 0 attachments",
        f"unblock {ANN.owner}": "is not blocked",
        f"keys rm {ANN.owner} laptop": "removed laptop",
        "drain": "no new boxes",
        "drain --cancel": "new work is accepted again",
        f"rm {ANN.owner}:web": "removed web",
        "help": "ssh sudo@host owners",
    }
    for line, header in columns.items():
        output = await succeed(sleepy, line)
        assert output.splitlines()[0].split() == header.split(), line
        assert isinstance(json.loads(await succeed(sleepy, f"{line} --json")), list | dict)
    for line, message in lines.items():
        assert message in await succeed(sleepy, line)
    words = {" ".join(command.words) for command in CONSOLE.commands}
    covered = {line for line in [*columns, *lines] for word in words if line.startswith(word)}
    assert covered == {*columns, *lines}
    assert all(any(line.startswith(word) for line in covered) for word in words)


async def test_json_of_commands_with_effects(world: World) -> None:
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
        assert json.loads(await succeed(world, f"{line} --json")) == document
    result = await sudo(world, "rm 0 --json")
    assert (result.status, json.loads(result.stderr)) == (1, {"error": "no box '0'; see: ls"})


async def test_it_lists_and_changes_the_boxes_of_all_owners(sleepy: World) -> None:
    mine = await sleepy.operations.boxes.up(ANN, "web")
    await sleepy.operations.boxes.up(ANN, "ws1/db")
    theirs = await sleepy.operations.boxes.up(BEN, "web")
    created = sleepy.clock.now()
    boxes = json.loads(await succeed(sleepy, "ls --json"))
    refs = sorted((box["owner"], box["ref"]) for box in boxes)
    assert refs == [(ANN.owner, "web"), (ANN.owner, "ws1/db"), (BEN.owner, "web")]
    assert "ssh_dest" not in boxes[0]
    boxes = json.loads(await succeed(sleepy, f"ls --owner {BEN.owner} --json"))
    assert [box["id"] for box in boxes] == [theirs.id]
    await succeed(sleepy, f"suspend {mine.id}")
    owners = json.loads(await succeed(sleepy, "owners --json"))
    rows = [(row["owner"], row["boxes"], row["running"], row["tier"]) for row in owners]
    assert rows == [(ANN.owner, 2, 1, "default"), (BEN.owner, 1, 1, "default")]
    assert owners[0]["last_seen"] == created.isoformat()
    await succeed(sleepy, f"rm {mine.id[:31]} {BEN.owner}:web")
    assert [box.ref for box in await sleepy.store.all_boxes()] == ["ws1/db"]
    assert "running boxes" in await succeed(sleepy, "stat")


async def test_references_must_mean_exactly_one_box(world: World) -> None:
    boxes = [await world.operations.boxes.up(who, "web") for who in (ANN, BEN)]
    prefix = next(d for d in "0123456789abcdef" if all(not b.id.startswith(d) for b in boxes))
    assert "no box" in await fail(world, f"rm {prefix}")
    assert "no box" in await fail(world, f"rm {NOBODY}:web")
    assert "no box" in await fail(world, f"kick {ANN.owner}:{boxes[1].id}")
    assert "give its id" in await fail(world, "suspend web", 2)
    assert "fingerprint" in await fail(world, "kick SHA256:x:web", 2)
    assert len(await world.store.all_boxes()) == 2


async def test_an_ambiguous_reference_names_the_candidates(world: World) -> None:
    boxes = [await world.operations.boxes.up(ANN, f"box{number}") for number in range(17)]
    first = {box.id[0]: box for box in boxes}
    shared = next(d for d in first if sum(box.id.startswith(d) for box in boxes) > 1)
    text = await fail(world, f"rm {shared}")
    assert "ambiguous" in text
    assert first[shared].id in text
    assert f"{ANN.owner}:{first[shared].ref}" in text
    assert len(await world.store.all_boxes()) == 17


@pytest.mark.parametrize(
    ("line", "status", "message"),
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
async def test_invalid_commands_are_rejected_and_recorded(
    world: World, line: str, status: int, message: str
) -> None:
    result = await sudo(world, line)
    assert result.status == status
    assert message in result.stderr
    entry = await newest_entry(world)
    assert (entry.admin, entry.status) == (ADMIN.owner, status)
    assert entry.line == (line.replace("\x1b", "\\x1b").replace("\x07", "\\x07") or "help")


async def test_a_command_is_recorded_before_it_runs(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    box = await world.operations.boxes.up(ANN, "web")
    entries: list[Audit] = []

    async def remove(_: object) -> None:
        entries.append(await newest_entry(world))

    monkeypatch.setattr(world.lifecycle, "remove", remove)
    await succeed(world, f"rm {box.id}")
    [before] = entries
    assert (before.line, before.status, before.owners) == (f"rm {box.id}", None, ())
    after = await newest_entry(world)
    assert (after.id, after.status, after.owners) == (before.id, 0, (ANN.owner,))


async def test_a_command_that_cannot_be_recorded_does_not_run(
    world: World, monkeypatch: pytest.MonkeyPatch, assert_logs: AssertLogs
) -> None:
    box = await world.operations.boxes.up(ANN, "web")

    async def unavailable(*_: object) -> None:
        raise Unavailable("the database does not answer")

    with monkeypatch.context() as patch:
        patch.setattr(world.store, "add_audit", unavailable)
        text = await fail(world, f"rm {box.id}")
        assert (
            "nothing was done, because the audit cannot be written: the database does not" in text
        )
        result = await sudo(world, "ls --json")
        assert "nothing was done" in json.loads(result.stderr)["error"]
    assert [stored.id for stored in await world.store.all_boxes()] == [box.id]
    with monkeypatch.context() as patch, assert_logs("end of a command is not in the audit"):
        patch.setattr(world.store, "finish_audit", unavailable)
        await succeed(world, f"rm {box.id}")
    assert (await newest_entry(world)).status is None
    assert await world.store.all_boxes() == []


async def test_no_verb_runs_without_an_audit_entry(world: World) -> None:
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
    verbs = {name for family in families for name in dir(family) if name.startswith("fleet_")}
    assert verbs == {*calls, "fleet_drain"}
    async with ops.fleet.audited(ADMIN, "over") as entry:
        pass
    for p in (ADMIN, entry.principal, ANN, Principal(ANN.owner, None, "api_key")):
        for verb, arguments in calls.items():
            family = ops.fleet if hasattr(ops.fleet, verb) else ops.owners
            with pytest.raises(Forbidden):
                await getattr(family, verb)(p, *arguments)
        with pytest.raises(Forbidden):
            ops.fleet.fleet_drain(p)
    with pytest.raises(Forbidden):
        async with ops.fleet.audited(ANN, "ls"):
            pass
    assert [stored.id for stored in await world.store.all_boxes()] == [box.id]
    await ops.boxes.up(ANN, "another")


async def test_a_line_that_is_too_long_is_recorded_in_part_and_does_not_run(world: World) -> None:
    box = await world.operations.boxes.up(ANN, "web")
    line = f"rm {box.id} " + "0" * (MAX_LINE - 36)
    assert len(line) == MAX_LINE
    assert (await sudo(world, line)).status == 1, "one reference is wrong, the other was right"
    assert (await newest_entry(world)).line == line
    assert await world.store.all_boxes() == []
    box = await world.operations.boxes.up(ANN, "web")
    text = await fail(world, f"rm {box.id} " + "\x01" * (MAX_LINE // 4), 2)
    assert f"{MAX_LINE} bytes" in text
    entry = await newest_entry(world)
    assert (len(entry.line), entry.status) == (MAX_LINE, 2)
    assert [stored.id for stored in await world.store.all_boxes()] == [box.id]


async def test_pasted_tokens_are_not_recorded(world: World) -> None:
    await sudo(world, f"keys rm {ANN.owner} svc_{'0' * 40} svcs_{'f' * 32}")
    assert (await newest_entry(world)).line == f"keys rm {ANN.owner} svc_*** svcs_***"


async def test_the_audit_lists_the_newest_last_with_the_owners_concerned(world: World) -> None:
    boxes = [await world.operations.boxes.up(who, "web") for who in (ANN, BEN)]
    lines = [f"kick {boxes[0].id}", f"keys ls {BEN.owner}", f"rm {boxes[0].id} {boxes[1].id}"]
    for line in lines:
        await succeed(world, line)
    entries = json.loads(await succeed(world, "audit --json"))
    assert [entry["command"] for entry in entries] == [*lines, "audit --json"]
    both = sorted((ANN.owner, BEN.owner))
    assert [entry["owners"] for entry in entries] == [[ANN.owner], [BEN.owner], both, []]
    assert [entry["status"] for entry in entries] == [0, 0, 0, None]
    assert {entry["admin"] for entry in entries} == {ADMIN.owner}
    entries_of_ben = json.loads(await succeed(world, f"audit --owner {BEN.owner} --json"))
    assert [entry["command"] for entry in entries_of_ben] == lines[1:]
    assert len((await succeed(world, "audit -n 2")).splitlines()) == 3


async def test_a_tier_applies_from_the_next_box_on(world: World) -> None:
    await succeed(world, f"tier set {ANN.owner} small")
    for number in range(2):
        await world.operations.boxes.up(ANN, f"box{number}")
    with pytest.raises(QuotaExceeded, match="2 running boxes"):
        await world.operations.boxes.up(ANN, "more")
    tiers = json.loads(await succeed(world, "tier ls --json"))
    assert [(tier["tier"], tier["owners"]) for tier in tiers] == [
        ("default", 0),
        ("large", 0),
        ("small", 1),
    ]
    assert tiers[2]["boxes"] == 5
    await succeed(world, f"tier set {ANN.owner} default")
    await world.operations.boxes.up(ANN, "more")


async def test_a_blocked_owner_has_no_access(world: World) -> None:
    ops = world.operations
    box = await ops.boxes.up(ANN, "web")
    _, key = await ops.keys.create_key(ANN, "laptop", scope=None, ttl=None)
    _, token = await ops.shares.create_share(ANN, "web", ttl=None)
    holder = await ops.shares.principal_of_share(token)
    tasks = [asyncio.create_task(hold(ops, who, box.id)) for who in (ANN, holder, BEN)]
    await until(lambda: world.lifecycle.attachments.count(box.id) == 2)
    assert json.loads(await succeed(world, f"block {ANN.owner} --json"))["ended"] == 2
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(result) for result in results] == [Forbidden, Forbidden, NotFound]
    assert str(results[0]) == "this account is blocked: ask the operator of this service"
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
    owners = json.loads(await succeed(world, "owners --json"))
    assert [row["blocked"] is None for row in owners] == [False]
    await world.restart()
    ops = world.operations
    with pytest.raises(Forbidden, match="blocked"):
        await ops.keys.principal_of_key(key.reveal())
    await succeed(world, f"unblock {ANN.owner}")
    await succeed(world, f"unblock {ANN.owner}")
    assert (await ops.keys.principal_of_key(key.reveal())).owner == ANN.owner
    assert await ops.shares.principal_of_share(token) == holder
    async with ops.boxes.attach(ANN, BoxAccess(box.id, kind="reference", why="x")):
        pass


async def test_a_kick_ends_all_attachments_of_the_box(world: World) -> None:
    ops = world.operations
    kicked, other = await ops.boxes.up(ANN, "web"), await ops.boxes.up(ANN, "other")
    tasks = [asyncio.create_task(hold(ops, ANN, ref)) for ref in ("web", "web", "other")]
    count = world.lifecycle.attachments.count
    await until(lambda: count(kicked.id) + count(other.id) == 3)
    assert json.loads(await succeed(world, f"kick {kicked.id} --json"))["ended"] == 2
    for task in tasks[:2]:
        with pytest.raises(Forbidden, match="an administrator of this service ended"):
            await task
    assert (count(kicked.id), count(other.id)) == (0, 1)
    tasks[2].cancel()
    await asyncio.wait(tasks)
    assert {box.state for box in await world.store.all_boxes()} == {"running"}


async def test_administrators_cannot_be_blocked(world: World) -> None:
    world.administrators.add(ADMIN.owner)
    assert "is an administrator" in await fail(world, f"block {ADMIN.owner}")
    world.operations.callers.check_admitted(ADMIN)
    world.administrators.clear()
    await succeed(world, f"block {ADMIN.owner}")


async def test_a_draining_service_accepts_no_new_work(world: World) -> None:
    ops = world.operations
    box = await ops.boxes.up(ANN, "web")
    async with ops.boxes.attach(ANN, BoxAccess("web", kind="spec", why="x")):
        await succeed(world, "drain")
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
        assert [view.id for view in await ops.boxes.list_boxes(ANN)] == [box.id]
        stat = {
            level["what"]: level["used"]
            for level in json.loads(await succeed(world, "stat --json"))
        }
        assert (stat["draining"], stat["attachments"]) == (True, 1)
        assert (await succeed(world, "stat")).splitlines()[-1].split() == ["draining", "yes", "-"]
    await succeed(world, "drain --cancel")
    await ops.boxes.up(ANN, "new")
