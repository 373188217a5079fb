"""Delegation: a task done in a box, by a shell command or by the owner's own agent program.

The agent's token is in the environment of its one process, and nowhere else: not in a command line,
a file, the box's sessions, a log or an answer, nor in the memory of what carries it there. As long
as it runs it holds the box, so that nothing writes its memory to a disk.
"""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from boxd.authz import Action, require
from boxd.boxes.attachments import DELEGATED
from boxd.boxes.exec import ExecRequest, running
from boxd.boxes.handover import running_with
from boxd.boxes.output import MASK, SHOWN_LINE, Kept, Lines, Masked, shown_line
from boxd.errors import BadRequest, NotFound, TooLarge
from boxd.model.delegated import MAX_OUTPUT, Delegated
from boxd.operations.boxes import BoxOperations

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from boxd.boxes.allowance import Room
    from boxd.boxes.exec import ExecRun
    from boxd.boxes.lifecycle import Attachment
    from boxd.model.delegated import Task
    from boxd.model.secret import Agent
    from boxd.principal import Principal
    from boxd.secret import Secret

MAX_PROMPT = 1024 * 1024
"""Bytes that an agent is given to read."""


class DelegateOperations(BoxOperations):
    """See the module."""

    async def delegate(
        self,
        p: Principal,
        task: Task,
        *,
        tell: Callable[[str], None] | None = None,
        reserve: Callable[[int], Awaitable[None]] | None = None,
    ) -> Delegated:
        """Does a task to its end; `tell` gets lines about it meanwhile. `reserve` is awaited when
        it is done, with the bytes that the result will have.

        Whoever cancels it, a key that is revoked and the timeout end all its processes. Forbidden
        (an agent, with a confined credential), NotFound (no agent), BadRequest, TooLarge,
        QuotaExceeded, and what `attach` raises.
        """
        say = tell or _ignore
        require(p, Action.DRIVE_AGENT if task.agent else Action.ATTACH_BOX)
        if task.box is not None and task.spec is not None:
            raise BadRequest("give the box in which it is done, or the spec of a new one, not both")
        if not 0 <= task.max_output <= MAX_OUTPUT:
            raise BadRequest(f"max_output is from 0 to {MAX_OUTPUT} bytes")
        agent = await self._agent(p, task) if task.agent else None
        token = None if agent is None else self._vault.open_token(agent)
        command = task.prompt if agent is None else agent.command
        request = ExecRequest.checked(command, dict(task.env), task.timeout_s)
        stdin = b"" if agent is None else _prompt(task.prompt)
        limit = self._tier_of(p.owner).check_delegations
        with self.keeping(p) as room:
            report = _Report(task, say, room, agent, token)
            with self._delegations.one_more(p.owner, limit):
                async with self._workplace(p, task, say) as held:
                    started = time.monotonic()
                    if agent is None or token is None:
                        begun = running(held.tunnel, request, held.env)
                    else:
                        begun = running_with(held.tunnel, request, held.env, {agent.env: token})
                    async with begun as run:
                        code = await _run(run, stdin, report)
                    spent = round((time.monotonic() - started) * 1000)
                    ref = held.box.ref
            size = report.end()
            if reserve is not None:
                await reserve(size)
            return report.result(ref, code, spent)

    async def _agent(self, p: Principal, task: Task) -> Agent:
        """The owner's agent, if the task leaves its variable alone. NotFound, BadRequest."""
        agent = await self._store.agent(p.owner)
        if agent is None:
            raise NotFound("no agent is set that could do it; see: agent set")
        if agent.env in task.env:
            raise BadRequest(f"{agent.env} is the variable in which the agent gets its token")
        return agent

    @asynccontextmanager
    async def _workplace(
        self, p: Principal, task: Task, say: Callable[[str], None]
    ) -> AsyncIterator[Attachment]:
        """Holds the box of a task; a new one goes with its last hold, also after a crash."""
        if task.box is not None:
            held = self.attach(p, task.box, task.ws, kind="reference", why=DELEGATED, progress=say)
        else:
            held = self.attach(
                *(p, task.spec or "_", task.ws),
                kind="spec",
                why=DELEGATED,
                run_box=True,
                ephemeral=not task.keep,
                notes=say,
                progress=say,
            )
        async with held as attachment:
            yield attachment


class _Report:
    """What a command has said, without the token of the agent."""

    def __init__(
        self,
        task: Task,
        say: Callable[[str], None],
        room: Room,
        agent: Agent | None,
        token: Secret | None,
    ) -> None:
        self._say = say
        self._agent = agent
        self._token = token
        self._kept = {name: Kept(task.max_output, room.part()) for name in ("stdout", "stderr")}
        self._masked = {name: Masked(token) for name in ("stdout", "stderr")}
        self._reads_lines = agent is not None and agent.format == "jsonl"
        self._lines = Lines(MAX_OUTPUT, room.part()) if self._reads_lines else Lines(SHOWN_LINE)
        self._object = b""
        """The last line of stdout that may be a JSON object, where the agent writes some."""

    async def add(self, stream: str, data: bytes) -> None:
        """Takes the next output."""
        self._take(stream, self._masked[stream].add(data))

    def _take(self, stream: str, data: bytes) -> None:
        self._kept[stream].add(data)
        if stream == "stdout":
            for line in self._lines.add(data):
                self._line(line)

    def _line(self, line: bytes) -> None:
        if self._reads_lines and line.strip().startswith(b"{"):
            self._object = line
        if shown := shown_line(line):
            self._say(shown)

    def _without_token(self, said: str) -> str:
        """JSON may write the token in another way, which reading it has undone."""
        return said if self._token is None else said.replace(self._token.reveal(), MASK.decode())

    def end(self) -> int:
        """Nothing more comes; about how many bytes `result` will have."""
        for stream, masked in self._masked.items():
            self._take(stream, masked.rest())
        if rest := self._lines.rest():
            self._line(rest)
        said = 0 if self._agent is None else max(self._kept["stdout"].size, len(self._object))
        return said + sum(kept.size for kept in self._kept.values())

    def result(self, box: str, code: int, spent_ms: int) -> Delegated:
        """All of it, after `end`."""
        stdout = self._kept["stdout"].whole()
        text = None
        if self._agent is not None:
            said = _answer(self._object) if self._reads_lines else None
            text = stdout.decode("utf-8", "replace") if said is None else self._without_token(said)
        return Delegated(
            box=box,
            exit_code=code,
            stdout=stdout,
            stderr=self._kept["stderr"].whole(),
            text=text,
            duration_ms=spent_ms,
            truncated=self._lines.cut or any(kept.left_out for kept in self._kept.values()),
        )


async def _run(run: ExecRun, stdin: bytes, report: _Report) -> int:
    """Feeds a command and reads it, to its end; its exit code."""
    feed = asyncio.create_task(_feed(run, stdin), name="delegate input")
    try:
        return await run.pump(report.add)
    finally:
        feed.cancel()
        await asyncio.gather(feed, return_exceptions=True)


async def _feed(run: ExecRun, stdin: bytes) -> None:
    if stdin:
        await run.write(stdin)
    run.write_eof()


def _prompt(text: str) -> bytes:
    """What the agent reads. BadRequest, TooLarge."""
    if not text.strip():
        raise BadRequest("the prompt is empty")
    try:
        data = text.encode("utf-8")
    except UnicodeEncodeError:
        raise BadRequest("the prompt holds half of a surrogate pair") from None
    if len(data) > MAX_PROMPT:
        raise TooLarge(f"the prompt has {len(data)} bytes; at most {MAX_PROMPT} are allowed")
    return data


def _answer(line: bytes) -> str | None:
    """What an agent that writes JSON says in a line; None when it is no such line."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict):
        return None
    for name in ("result", "text"):
        if isinstance(said := found.get(name), str):
            return said
    return None


def _ignore(_line: str) -> None:
    """Where lines go that nobody reads."""
