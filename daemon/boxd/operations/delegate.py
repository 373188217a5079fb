"""Delegation: a shell command, or the owner's own agent program, runs a task in a box.

The agent's token is in the environment of its one process and nowhere else. It is not in a command
line, a file, the box's sessions, a log or an answer. The processes that pass it on do not have it
in memory. The running agent holds the box, so that the service does not write its memory to disk.
"""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from boxd.authz import Action, require
from boxd.boxes.commands.exec import ExecRequest, running
from boxd.boxes.commands.handover import running_with
from boxd.boxes.commands.output import MASK, SHOWN_LINE, HeadAndTail, Lines, Masked, shown_line
from boxd.boxes.limits.budgets.concurrency import ConcurrencyCount
from boxd.boxes.presence.attachments import DELEGATED
from boxd.boxes.state.requests import BoxAccess
from boxd.errors import BadRequest, NotFound, TooLarge
from boxd.model.delegated import MAX_OUTPUT, Delegated
from boxd.model.progress import Progress

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
    from contextlib import AbstractAsyncContextManager

    from boxd.boxes.commands.exec import ExecRun
    from boxd.boxes.lifecycle.holds import Attachment
    from boxd.boxes.limits.budgets.output import Allowances, Room
    from boxd.boxes.limits.tier_limits import Tier
    from boxd.model.delegated import Task
    from boxd.model.secret import Agent
    from boxd.operations.boxes import BoxOperations
    from boxd.operations.shared.vault import Vault
    from boxd.principal import Principal
    from boxd.secret import Secret
    from boxd.store.interface import ControlStore

MAX_PROMPT = 1024 * 1024
"""Maximum size of a prompt for an agent, in bytes."""


def _ignore(_line: str) -> None:
    """Discard a line."""


class DelegateOperations:
    """Runs tasks in boxes, and limits how many an owner runs at once."""

    def __init__(
        self,
        store: ControlStore,
        boxes: BoxOperations,
        vault: Vault,
        allowances: Allowances,
        tier_of: Callable[[str], Tier],
    ) -> None:
        self._store = store
        self._boxes = boxes
        self._vault = vault
        self._allowances = allowances
        self._tier_of = tier_of
        self._delegations = ConcurrencyCount()

    async def delegate(
        self,
        p: Principal,
        task: Task,
        *,
        on_line: Callable[[str], None] = _ignore,
        reserve: Callable[[int], Awaitable[None]] | None = None,
    ) -> Delegated:
        """Run a task to its end; `on_line` gets lines of its output while it runs.

        The method awaits `reserve` after the task ends, with the size of the result in bytes.
        Cancelling the call, revoking its key and the timeout end all processes of the task. Raises
        Forbidden for an agent with a scoped credential; NotFound if no agent is set; BadRequest,
        TooLarge, QuotaExceeded, and what `attach` raises.
        """
        require(p, Action.DRIVE_AGENT if task.agent else Action.ATTACH_BOX)
        if task.box is not None and task.spec is not None:
            raise BadRequest("give an existing box, or the spec of a new one, not both")
        if not 0 <= task.max_output <= MAX_OUTPUT:
            raise BadRequest(f"max_output must be 0 to {MAX_OUTPUT} bytes")
        agent = await self._agent(p, task) if task.agent else None
        token = None if agent is None else self._vault.open_token(agent)
        command = task.prompt if agent is None else agent.command
        request = ExecRequest.checked(command, dict(task.env), task.timeout_s)
        stdin = b"" if agent is None else _prompt(task.prompt)
        limit = self._tier_of(p.owner).check_delegations
        with self._allowances.room(p.owner) as room:
            report = _Report(task, on_line, room, agent, token)
            with self._delegations.one_more(p.owner, limit):
                async with self._workplace(p, task, on_line) as attachment:
                    started = time.monotonic()
                    own = None if agent is None or token is None else {agent.env: token}
                    async with _running(attachment, request, own) as run:
                        code = await _run(run, stdin, report)
                    duration_ms = round((time.monotonic() - started) * 1000)
                    ref = attachment.box.ref
            size = report.end()
            if reserve is not None:
                await reserve(size)
            return report.result(ref, code, duration_ms)

    async def _agent(self, p: Principal, task: Task) -> Agent:
        """Return the owner's agent.

        Raises NotFound; BadRequest if the task sets its variable.
        """
        agent = await self._store.agent(p.owner)
        if agent is None:
            raise NotFound("no agent is set; see: agent set")
        if agent.env in task.env:
            raise BadRequest(
                f"{agent.env} is reserved: it holds the token of the agent; remove it from env"
            )
        return agent

    @asynccontextmanager
    async def _workplace(
        self, p: Principal, task: Task, on_line: Callable[[str], None]
    ) -> AsyncIterator[Attachment]:
        """Attach to the box of a task. The last detach removes a new box, even after a crash."""
        if task.box is not None:
            access = BoxAccess(task.box, kind="reference", why=DELEGATED, ws=task.ws)
        else:
            access = BoxAccess(
                task.spec or "_",
                kind="spec",
                why=DELEGATED,
                ws=task.ws,
                run_box=True,
                ephemeral=not task.keep,
            )
        progress = Progress.in_lines(on_line, on_line)
        async with self._boxes.attach(p, access, progress) as attachment:
            yield attachment


class _Report:
    """Collects the output of a command, and masks the token of the agent in it."""

    def __init__(
        self,
        task: Task,
        on_line: Callable[[str], None],
        room: Room,
        agent: Agent | None,
        token: Secret | None,
    ) -> None:
        self._on_line = on_line
        self._agent = agent
        self._token = token
        self._outputs = {
            name: HeadAndTail(task.max_output, room.part()) for name in ("stdout", "stderr")
        }
        self._masked = {name: Masked(token) for name in ("stdout", "stderr")}
        self._reads_lines = agent is not None and agent.format == "jsonl"
        self._lines = Lines(MAX_OUTPUT, room.part()) if self._reads_lines else Lines(SHOWN_LINE)
        self._object = b""
        """The last line of stdout that may be a JSON object, if the agent writes JSON."""

    async def add(self, stream: str, data: bytes) -> None:
        """Add the next output of a stream."""
        self._take(stream, self._masked[stream].add(data))

    def _take(self, stream: str, data: bytes) -> None:
        self._outputs[stream].add(data)
        if stream == "stdout":
            for line in self._lines.add(data):
                self._line(line)

    def _line(self, line: bytes) -> None:
        if self._reads_lines and line.strip().startswith(b"{"):
            self._object = line
        if text := shown_line(line):
            self._on_line(text)

    def _without_token(self, text: str) -> str:
        """Mask the token in decoded JSON, where escapes may have hidden it from `Masked`."""
        return text if self._token is None else text.replace(self._token.reveal(), MASK.decode())

    def end(self) -> int:
        """Finish the output; return the approximate size of `result` in bytes."""
        for stream, masked in self._masked.items():
            self._take(stream, masked.rest())
        if rest := self._lines.rest():
            self._line(rest)
        answer_size = (
            0 if self._agent is None else max(self._outputs["stdout"].size, len(self._object))
        )
        return answer_size + sum(output.size for output in self._outputs.values())

    def result(self, box: str, code: int, duration_ms: int) -> Delegated:
        """Return the whole result; call it after `end`."""
        stdout = self._outputs["stdout"].whole()
        text = None
        if self._agent is not None:
            answer = _answer(self._object) if self._reads_lines else None
            if answer is None:
                text = stdout.decode("utf-8", "replace")
            else:
                text = self._without_token(answer)
        return Delegated(
            box=box,
            exit_code=code,
            stdout=stdout,
            stderr=self._outputs["stderr"].whole(),
            text=text,
            duration_ms=duration_ms,
            truncated=self._lines.cut or any(output.left_out for output in self._outputs.values()),
        )


def _running(
    attachment: Attachment, request: ExecRequest, own: Mapping[str, Secret] | None
) -> AbstractAsyncContextManager[ExecRun]:
    """Run a command; `own` are variables that only the command can read."""
    tunnel, env, oom, observer = (
        attachment.tunnel,
        attachment.env,
        attachment.oom,
        attachment.observer,
    )
    if own is None:
        return running(tunnel, request, env, oom, observer=observer)
    return running_with(tunnel, request, env, own, oom, observer=observer)


async def _run(run: ExecRun, stdin: bytes, report: _Report) -> int:
    """Write the input of a command and read its output to the end; return its exit code."""
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
    """Return the input of the agent. Raises BadRequest, TooLarge."""
    if not text.strip():
        raise BadRequest("the prompt is empty")
    try:
        data = text.encode("utf-8")
    except UnicodeEncodeError:
        raise BadRequest(
            "the prompt is not valid Unicode: it contains an unpaired surrogate"
        ) from None
    if len(data) > MAX_PROMPT:
        raise TooLarge(f"the prompt has {len(data)} bytes; at most {MAX_PROMPT} are allowed")
    return data


def _answer(line: bytes) -> str | None:
    """Return the answer in a line of JSON of an agent, or None."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(message, dict):
        return None
    for name in ("result", "text"):
        if isinstance(answer := message.get(name), str):
            return answer
    return None
