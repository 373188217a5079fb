"""Delegated tasks in boxes that are real processes: what they give, and where no token is."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import os
import shlex
import sys
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from boxd.boxes.commands.exec import ExecRequest, running
from boxd.boxes.limits.budgets import output as output_budget
from boxd.boxes.state.requests import BoxAccess
from boxd.errors import BadRequest, Forbidden, InvalidKey, NotFound, QuotaExceeded
from boxd.model.delegated import Task
from boxd.principal import Principal
from boxd.secret import Secret
from tests.harness.agents.allowances import small_allowances
from tests.harness.agents.unhurried import time_from_first_output
from tests.harness.wait import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from boxd.model.delegated import Delegated
    from tests.harness.ssh.frontdoor import Entrance

ALICE = Principal("SHA256:alice", None, "ssh_key")
BOB = Principal("SHA256:bob", None, "ssh_key")
SCOPED = Principal(ALICE.owner, "ws1", "api_key", "k1")
TOKEN = "canary-token-of-the-agent-0123456789"
SAYS_TOKEN = "import json, os; print(json.dumps({'result': f'it is {os.environ[\"T\"]} here'}))"
REFERENCE = Path(__file__).parents[2] / "docs" / "agents" / "reference-agent"


async def set_agent(
    entrance: Entrance, command: str, output: str = "text", env: str = "AGENT_TOKEN"
) -> None:
    """Alice's agent from now on."""
    await entrance.operations.agents.set_agent(
        ALICE, command=command, env=env, output=output, token=Secret(TOKEN)
    )


async def refs(entrance: Entrance) -> list[str]:
    """All boxes of Alice."""
    return [box.ref for box in await entrance.operations.boxes.list_boxes(ALICE, everywhere=True)]


async def gone(entrance: Entrance, *left: str) -> None:
    """Waits until no other boxes are there."""
    with entrance.operations.visits.changes(ALICE) as heard:
        async with asyncio.timeout(30):
            while sorted(await refs(entrance)) != sorted(left):
                await heard.next()


def told_by(lines: list[str], word: str) -> str:
    """What stands after a word that a task has told."""
    return next(line.split()[1] for line in lines if line.startswith(f"{word} "))


@asynccontextmanager
async def task_of(
    entrance: Entrance, task: Task, p: Principal = ALICE
) -> AsyncIterator[tuple[asyncio.Task[Delegated], list[str]]]:
    """A task under way, and what it tells."""
    lines: list[str] = []
    work = asyncio.create_task(
        entrance.operations.delegations.delegate(p, task, on_line=lines.append)
    )
    try:
        yield work, lines
    finally:
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)


async def test_a_command_is_done_in_a_new_box_that_goes(front_door: Entrance) -> None:
    lines: list[str] = []
    task = Task("echo one; echo two >&2; exit 3", env={"A": "b"})
    done = await front_door.operations.delegations.delegate(ALICE, task, on_line=lines.append)
    assert (done.exit_code, done.stdout, done.stderr) == (3, b"one\n", b"two\n")
    assert (done.text, done.truncated) == (None, False)
    assert done.box.startswith("tmp-")
    assert lines[-1] == "one"
    await gone(front_door)


async def test_a_box_that_was_there_stays(front_door: Entrance) -> None:
    ops = front_door.operations
    await ops.boxes.up(ALICE, "ws1/web")
    for task in (
        Task("echo $A", box="ws1/web", env={"A": "b"}),
        Task("echo b", box="web", ws="ws1"),
        Task("echo b", spec="ws1/web"),
        Task("echo b", spec="web", ws="ws1", keep=True),
    ):
        done = await ops.delegations.delegate(ALICE, task)
        assert (done.box, done.stdout) == ("ws1/web", b"b\n")
    await gone(front_door, "ws1/web")


async def test_a_new_box_stays_if_it_is_to_be_kept(front_door: Entrance) -> None:
    ops = front_door.operations
    unnamed = await ops.delegations.delegate(ALICE, Task("true", keep=True))
    named = await ops.delegations.delegate(ALICE, Task("true", spec="kept^1h", keep=True))
    goes = await ops.delegations.delegate(ALICE, Task("true", spec="goes^1h"))
    assert (named.box, goes.box) == ("kept", "goes")
    await gone(front_door, unnamed.box, "kept")
    boxes = await front_door.store.boxes(ALICE.owner)
    assert not any(box.ephemeral for box in boxes)


async def test_output_is_kept_at_both_ends(front_door: Entrance) -> None:
    task = Task("seq 100000; echo last", max_output=1000)
    done = await front_door.operations.delegations.delegate(ALICE, task)
    assert done.truncated
    assert len(done.stdout) < 1100
    assert done.stdout.startswith(b"1\n2\n")
    assert done.stdout.endswith(b"last\n")


async def test_an_agent_reads_the_prompt_and_answers(front_door: Entrance) -> None:
    """Whole stdout as text; what it has of the environment, and the secrets of sessions."""
    ops = front_door.operations
    await ops.secrets.set_secret(ALICE, "DEPLOY", Secret("of the account"), tier="account")
    command = 'cat; printf %s "$AGENT_TOKEN" | sha256sum; echo "$DEPLOY $OWN"'
    await set_agent(front_door, command)
    task = Task("Fix\nthe é", agent=True, env={"OWN": "mine"})
    done = await ops.delegations.delegate(ALICE, task)
    digest = hashlib.sha256(TOKEN.encode()).hexdigest()
    assert done.text == f"Fix\nthe é{digest}  -\nof the account mine\n"
    assert done.exit_code == 0
    await gone(front_door)


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        (['{"type": "step"}', '{"result": "done é", "text": "no"}'], "done é"),
        (['{"result": "older"}', '{"text": "newer"}', "", "noise"], "newer"),
        (['{"result": 3}'], '{"result": 3}\n'),
        (["no JSON {at} all"], "no JSON {at} all\n"),
        (['{"result": "cut off'], '{"result": "cut off\n'),
        ([], ""),
    ],
)
async def test_of_jsonl_the_last_object_counts(
    front_door: Entrance, lines: list[str], text: str
) -> None:
    whole = "".join(f"{line}\n" for line in lines)
    await set_agent(front_door, f"cat >/dev/null; printf %s {shlex.quote(whole)}", "jsonl")
    done = await front_door.operations.delegations.delegate(ALICE, Task("x", agent=True))
    assert done.text == text


async def test_a_long_last_line_is_read_although_output_is_cut(front_door: Entrance) -> None:
    program = "import json; print('x' * 9999); print(json.dumps({'result': 'y' * 100_000}))"
    command = f"{sys.executable} -c {shlex.quote(program)}"
    await set_agent(front_door, command, "jsonl")
    task = Task("x", agent=True, max_output=100)
    done = await front_door.operations.delegations.delegate(ALICE, task)
    assert done.truncated
    assert done.text == "y" * 100_000


async def test_what_an_agent_says_is_bounded_by_its_owners_allowance(
    front_door: Entrance, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = small_allowances(monkeypatch, 50_000)  # room for half of the line
    program = "import json; print(json.dumps({'result': 'y' * 100_000}))"
    command = f"{sys.executable} -c {shlex.quote(program)}"
    await set_agent(front_door, command, "jsonl")
    reserved: list[int] = []

    async def reserve(size: int) -> None:
        assert made[0].taken > 0
        await gone(front_door)  # who waits for its turn holds no box
        reserved.append(size)

    ops = front_door.operations
    done = await ops.delegations.delegate(ALICE, Task("x", agent=True), reserve=reserve)
    assert done.text is not None
    assert done.text.startswith('{"result": "yyyy')
    assert "bytes left out" in done.text
    assert done.truncated
    assert len(done.stdout) < 50_000 + output_budget.ALWAYS
    assert reserved[0] >= len(done.stdout) - 50
    assert made[0].taken == 0


async def test_the_token_is_told_nowhere(
    front_door: Entrance, caplog: pytest.LogCaptureFixture
) -> None:
    """Printed whole, in pieces, and in a line that is cut where it stands."""
    caplog.set_level(logging.DEBUG)
    half = len(TOKEN) // 2
    program = (
        "printf 'whole %s\\n' $T; printf 'pieces '; printf %s "
        f"$(printf %s $T | head -c {half}); sleep 0.2; printf '%s\\n' "
        f"$(printf %s $T | tail -c +{half + 1}); "
        "printf '%0500d%s\\n' 0 $T; printf 'error %s\\n' $T >&2; printf 'end %s' $T"
    )
    await set_agent(front_door, program, env="T")
    lines: list[str] = []
    done = await front_door.operations.delegations.delegate(
        ALICE, Task("x", agent=True), on_line=lines.append
    )
    assert done.text is not None
    assert done.text.startswith("whole ***\npieces ***\n0000")
    assert done.text.endswith("end ***")
    assert done.stderr == b"error ***\n"
    assert {"whole ***", "pieces ***", "end ***"} <= {*lines}
    assert max(len(line.encode()) for line in lines) <= 512
    shown = repr((done, lines, caplog.text, [vars(one) for one in caplog.records]))
    for part in (TOKEN, TOKEN[:half], TOKEN[half:], TOKEN[:12]):
        assert part not in shown


async def test_the_token_is_not_in_what_a_line_of_json_says(front_door: Entrance) -> None:
    """JSON writes some characters in another way, which is undone in the answer."""
    token = 'canary"token\\é'
    await front_door.operations.agents.set_agent(
        ALICE,
        command=f"{sys.executable} -c {shlex.quote(SAYS_TOKEN)}",
        env="T",
        output="jsonl",
        token=Secret(token),
    )
    done = await front_door.operations.delegations.delegate(ALICE, Task("x", agent=True))
    assert done.text == "it is *** here"


async def test_the_token_is_in_the_environment_of_the_one_process(
    front_door: Entrance, caplog: pytest.LogCaptureFixture
) -> None:
    """The reference agent waits for an answer meanwhile."""
    caplog.set_level(logging.DEBUG)
    ops = front_door.operations
    box = await ops.boxes.up(ALICE, "web")
    guest = f"{sys.executable} -m box_guest.cli --socket {front_door.backend.guest_socket(box.id)}"
    await set_agent(front_door, f"exec {REFERENCE}", "jsonl")
    prompt = "echo working; echo pid $PPID\n? Deploy it?|yes|no\necho deployed"
    task = Task(prompt, agent=True, box="web", env={"GUEST": guest})
    async with task_of(front_door, task) as (work, lines):
        await until(lambda: any("Deploy" in line for line in lines))
        with ops.visits.changes(ALICE) as heard:
            while not (asks := await ops.asks.list_asks(ALICE)):
                await heard.next()
        (ask,) = asks
        assert (ask.box, ask.ask.options) == ("web", ("yes", "no"))
        (view,) = await ops.boxes.list_boxes(ALICE)
        assert view.why == {"delegate": 1}
        agent = next(json.loads(line)["text"] for line in lines if "pid" in line)
        holders = processes_with(TOKEN.encode())
        assert int(agent.split()[-1]) in holders
        for pid in holders:  # forks of the agent itself
            assert str(REFERENCE) in psutil.Process(pid).cmdline()
        await check_sessions_lack_it(front_door)
        await ops.asks.answer_ask(ALICE, ask.ask.id, "yes")
        done = await work
    assert done.text == "3 steps done"
    assert TOKEN not in caplog.text
    stored = await front_door.store.agent(ALICE.owner)
    assert stored is not None
    assert TOKEN.encode() not in stored.sealed
    assert [path for path in files_below(front_door) if TOKEN.encode() in path.read_bytes()] == []


def processes_with(text: bytes) -> set[int]:
    """Processes in whose environment it stands; fails if it stands in a command line."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            assert text not in (process / "cmdline").read_bytes()
            if text in (process / "environ").read_bytes():
                found.add(int(process.name))
        except OSError:
            continue
    return found


def files_below(entrance: Entrance) -> list[Path]:
    """All files of the installation and of its boxes."""
    root = entrance.client.directory.parent
    return [path for path in root.rglob("*") if path.is_file()]


async def check_sessions_lack_it(entrance: Entrance) -> None:
    """What is started in the box beside the agent does not get it."""
    async with entrance.operations.boxes.attach(
        ALICE, BoxAccess("web", kind="reference", why="exec")
    ) as held:
        said = bytearray()

        async def keep(_stream: str, data: bytes) -> None:
            said.extend(data)

        async with running(held.tunnel, ExecRequest("env"), held.env) as run:
            run.write_eof()
            assert await run.pump(keep) == 0
        assert b"PATH=" in said
        assert TOKEN.encode() not in said


STUBBORN = "trap '' HUP TERM; sleep 1000 & echo pid $!; wait; sleep 1000"


async def says_pid(lines: list[str]) -> None:
    """Waits until the stubborn one runs."""
    await until(lambda: any(line.startswith("pid ") for line in lines))


async def ended(pid: int) -> None:
    """Waits until a process has ended, whether anybody has asked for its status or not."""

    def over() -> bool:
        try:
            return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True

    await until(over)


async def test_the_timeout_ends_all_its_processes(
    front_door: Entrance, monkeypatch: pytest.MonkeyPatch
) -> None:
    time_from_first_output(monkeypatch)
    await set_agent(front_door, STUBBORN)
    async with task_of(front_door, Task("x", agent=True, timeout_s=1)) as (work, lines):
        done = await work
    assert done.exit_code == 124
    assert b"timeout of 1 s" in done.stderr
    await ended(int(told_by(lines, "pid")))
    await gone(front_door)


async def test_who_cancels_ends_all_its_processes(front_door: Entrance) -> None:
    for agent in (True, False):
        await set_agent(front_door, STUBBORN)
        async with task_of(front_door, Task(STUBBORN, agent=agent)) as (work, lines):
            await says_pid(lines)
            pid = int(told_by(lines, "pid"))
            work.cancel()
            with pytest.raises(asyncio.CancelledError):
                await work
            await ended(pid)
        await gone(front_door)


async def test_who_cancels_while_the_box_is_made_leaves_none(front_door: Entrance) -> None:
    async with task_of(front_door, Task("true", spec="named")) as (work, lines):
        await until(lambda: any("creating" in line for line in lines))
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
    await gone(front_door)


async def test_a_revoked_key_ends_what_it_delegated(front_door: Entrance) -> None:
    ops = front_door.operations
    key, _ = await ops.keys.create_key(ALICE, "laptop", scope=None, ttl=None)
    await set_agent(front_door, STUBBORN)
    p = Principal(ALICE.owner, None, "api_key", key.id)
    async with task_of(front_door, Task("x", agent=True), p) as (work, lines):
        await says_pid(lines)
        await ops.keys.remove_key(ALICE, "laptop")
        with pytest.raises(InvalidKey):
            await work
        await ended(int(told_by(lines, "pid")))
    await gone(front_door)


async def test_an_owner_has_so_many_at_once(front_door: Entrance) -> None:
    ops = front_door.operations
    await front_door.tiers.assign(ALICE.owner, "small")
    limit = front_door.tiers.of(ALICE.owner).delegations
    await ops.boxes.up(ALICE, "web")
    blocked = Task("echo here; sleep 1000", box="web")
    async with (
        task_of(front_door, blocked) as (_, first),
        task_of(front_door, blocked) as (_, last),
    ):
        assert limit == 2
        await until(lambda: "here" in first and "here" in last)
        with pytest.raises(QuotaExceeded, match="2 delegated tasks"):
            await ops.delegations.delegate(ALICE, Task("true", box="web"))
        assert (await ops.delegations.delegate(BOB, Task("true"))).exit_code == 0
    assert (await ops.delegations.delegate(ALICE, Task("true", box="web"))).exit_code == 0


async def test_what_a_confined_credential_may(front_door: Entrance) -> None:
    ops = front_door.operations
    await ops.workspaces.create_workspace(ALICE, "ws1")
    await set_agent(front_door, "cat")
    with pytest.raises(Forbidden, match="ws1"):
        await ops.delegations.delegate(SCOPED, Task("x", agent=True))
    with pytest.raises(Forbidden, match="ws1"):
        await ops.delegations.delegate(SCOPED, Task("true", spec="ws2/_"))
    done = await ops.delegations.delegate(SCOPED, Task("echo in"))
    assert (done.box.startswith("ws1/tmp-"), done.stdout) == (True, b"in\n")
    share = replace(SCOPED, scope=None, via="share")
    with pytest.raises(Forbidden):
        await ops.delegations.delegate(share, Task("x", agent=True))
    await gone(front_door)


@pytest.mark.parametrize(
    ("task", "text"),
    [
        (Task("x", box="web", spec="web"), "not both"),
        (Task("", agent=False), "cmd must be"),
        (Task(" \n", agent=True), "prompt is empty"),
        (Task("\ud800", agent=True), "surrogate"),
        (Task("x", agent=True, env={"AGENT_TOKEN": "mine"}), "AGENT_TOKEN"),
        (Task("x", env={"1": "mine"}), "shell identifier"),
        (Task("x", timeout_s=0), "timeout_s"),
        (Task("x", timeout_s=86_401), "timeout_s"),
        (Task("x", max_output=-1), "max_output"),
        (Task("x", max_output=5 * 1024 * 1024), "max_output"),
    ],
)
async def test_what_makes_no_sense_is_refused(front_door: Entrance, task: Task, text: str) -> None:
    await set_agent(front_door, "cat")
    with pytest.raises(BadRequest, match=text):
        await front_door.operations.delegations.delegate(ALICE, task)
    assert await refs(front_door) == []


async def test_without_an_agent_its_command_is_named(front_door: Entrance) -> None:
    with pytest.raises(NotFound, match="agent set"):
        await front_door.operations.delegations.delegate(ALICE, Task("x", agent=True))
    assert await refs(front_door) == []


def test_the_reference_agent_can_be_run() -> None:
    assert os.access(REFERENCE, os.X_OK)
