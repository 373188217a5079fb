"""Background commands: commands that belong to the box, not to a channel of the tunnel.

They survive the loss of the tunnel, a suspension of the box, and its fork: both boxes then have
them. They end with the box. A file in the agent's directory stores the output of each.

One event loop runs all methods. State changes only between awaits.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from box_guest.errors import SpawnError
from box_guest.process.output_log import OutputLog
from box_guest.process.process import Command
from box_guest.shared.command_messages import (
    CAPACITY,
    MAX_COMMANDS,
    SHOWN_COMMAND,
    TIMEOUT_CODE,
    CommandState,
)
from box_guest.shared.requests import CONFLICT, FAILED, FULL, MISSING, Refused

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from pathlib import Path
    from typing import Any, TypeAlias

    from box_guest.process.process import CommandSpec, Reaper

    Spawn: TypeAlias = "Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]"

logger = logging.getLogger(__name__)

_SIGNAL_BASE = 128


@dataclass(frozen=True, slots=True)
class BackgroundOptions:
    """Options of a background command.

    `timeout_s` None: no timeout. `stdin`: its input stays open for later writes.
    """

    timeout_s: int | None = None
    keep_awake: bool = True
    stdin: bool = False


class BackgroundCommand:
    """One background command. Implements `process.Output`: its output goes to a log."""

    def __init__(
        self,
        number: str,
        spec: CommandSpec,
        options: BackgroundOptions,
        log: OutputLog,
        spawn: Spawn,
    ) -> None:
        """`spawn` starts a task that outlives an `Agent`."""
        self.id = number
        self.log = log
        self._spawn = spawn
        self.keep_awake = options.keep_awake
        self._stdin = options.stdin
        self._timeout_s = options.timeout_s
        self._cmd = (spec.command or "")[:SHOWN_COMMAND]
        self._command: Command | None = None
        self._started = time.time()
        self._ended: float | None = None
        self._code = 0
        self._signal: str | None = None
        self._timed_out = False
        self._complete = False
        self._writing = asyncio.Lock()
        self._accepting = asyncio.Event()
        self._accepting.set()
        self._news: set[asyncio.Future[None]] = set()

    def start(self, spec: CommandSpec, reaper: Reaper) -> None:
        """Start the command. Raises SpawnError."""
        self._command = Command(spec, self, reaper)
        if not self._stdin:
            self._command.end_input()

    @property
    def running(self) -> bool:
        """Whether the command runs, or some of its output is not in the log yet."""
        return not self._complete

    def state(self) -> CommandState:
        """Return the description of the command."""
        command = self._process()
        return CommandState(
            id=self.id,
            cmd=self._cmd,
            running=self.running,
            exit_code=None if self.running else self._code,
            signal=None if self.running else self._signal,
            pid=command.pid,
            started=self._started,
            ended=None if self.running else self._ended,
            output_bytes=self.log.end,
            dropped_bytes=self.log.begin,
            stdin_open=self.running and not command.input_closed,
            keep_awake=self.keep_awake,
            timeout_s=self._timeout_s,
        )

    async def run(self) -> None:
        """Wait until the command has ended and all its output is in the log."""
        command = self._process()
        limit = self._spawn(self._limit(command))
        try:
            await command.finish()
            if self._timed_out:
                await limit  # processes that ignore TERM still have to be killed
                text = f"boxd: the command was ended after its timeout of {self._timeout_s} s\n"
                self.log.add(text.encode(), stderr=True)
        finally:
            limit.cancel()
            self._complete = True
            self._accepting.set()
            self._tell()

    async def news(self) -> None:
        """Wait until there is more output, or the command has ended."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._news.add(future)
        try:
            await future
        finally:
            self._news.discard(future)

    async def feed(self, data: bytes) -> None:
        """Write to the command's input; return when the command accepts more.

        Raises Refused if the input is closed.
        """
        async with self._writing:
            self.check_input()
            self._process().feed(data)
            await self._accepting.wait()

    async def end_input(self) -> None:
        """Close the command's input; a command that has ended has no input to close.

        Raises Refused if the input of a running command is closed.
        """
        async with self._writing:
            if self.running:
                self.check_input()
                self._process().end_input()

    def check_input(self) -> None:
        """Raise Refused if the command takes no input."""
        if not self.running:
            raise Refused(CONFLICT, f"command {self.id} has ended and reads no input")
        if self._process().input_closed:
            raise Refused(CONFLICT, f"the input of command {self.id} is closed")

    def signal(self, name: str) -> None:
        """Send a signal (name without SIG) to the command's process group. Raises Refused."""
        command = self._process()
        if not command.running:
            raise Refused(CONFLICT, f"command {self.id} has ended")
        command.signal(name)

    async def terminate(self) -> None:
        """End the command: TERM, then KILL. Returns when its output is complete."""
        await self._process().terminate()
        while self.running:
            await self.news()

    def kill(self) -> None:
        """Kill the command if it runs."""
        self._process().kill()

    async def abandon(self) -> None:
        """End the command and drop its further output, because the agent ends."""
        await self._process().abandon()

    # --- callbacks of the command ------------------------------------------------------------

    def write(self, data: bytes, *, stderr: bool) -> None:
        """Store output."""
        self.log.add(data, stderr=stderr)
        self._tell()

    def hold_input(self, held: bool) -> None:
        """Block (`held`) or unblock `feed`."""
        if held:
            self._accepting.clear()
        else:
            self._accepting.set()

    def exited(self, code: int) -> None:
        """Store the exit code."""
        self._end(code, None)

    def killed(self, name: str, core_dumped: bool) -> None:
        """Store the signal that ended the command."""
        number = signal.Signals.__members__.get(f"SIG{name}")
        self._end(_SIGNAL_BASE + (number.value if number is not None else 0), name)

    def finished(self) -> None:
        """Do nothing: `run` marks the end."""

    def _end(self, code: int, name: str | None) -> None:
        self._ended = time.time()
        self._signal = name
        self._code = TIMEOUT_CODE if self._timed_out else code

    async def _limit(self, command: Command) -> None:
        if self._timeout_s is None:
            return
        await asyncio.sleep(self._timeout_s)
        if command.running:
            self._timed_out = True
            await command.terminate()

    def _tell(self) -> None:
        for future in self._news:
            if not future.done():
                future.set_result(None)

    def _process(self) -> Command:
        if self._command is None:
            raise RuntimeError("the command was not started")
        return self._command


class BackgroundCommands:
    """The background commands of a box, by id, in the order of their start.

    It lives as long as the process of the agent, even if the box becomes another one.
    """

    def __init__(self, directory: Path, reaper: Reaper) -> None:
        """`directory`: the place of the output. It is emptied: its commands ended with the box."""
        self._directory = directory
        self._reaper = reaper
        _empty(directory)
        self._commands: dict[str, BackgroundCommand] = {}
        self.tasks: set[asyncio.Task[None]] = set()
        """Tasks that outlive an `Agent`."""
        self.on_change: Callable[[], None] = lambda: None
        """Called when `awake` may have changed."""

    @property
    def awake(self) -> int:
        """Number of running commands that keep the box awake."""
        commands = self._commands.values()
        return sum(command.running and command.keep_awake for command in commands)

    @property
    def pids(self) -> set[int]:
        """Process ids of the running commands."""
        return {command.state().pid for command in self._commands.values() if command.running}

    def start(self, spec: CommandSpec, options: BackgroundOptions) -> BackgroundCommand:
        """Start a command. Forgets the oldest ended command if the limit is reached.

        Raises Refused if the limit is reached, or if the command or its file cannot be created.
        """
        self._make_room()
        number = secrets.token_hex(8)
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            log = OutputLog(self._directory / number, CAPACITY)
        except OSError as error:
            text = f"the box cannot store the output of a command: {error.strerror}"
            raise Refused(FAILED, text) from None
        command = BackgroundCommand(number, spec, options, log, self._spawn)
        try:
            command.start(spec, self._reaper)
        except SpawnError as error:
            log.remove()
            raise Refused(FAILED, str(error)) from None
        self._commands[number] = command
        self._spawn(self._run(command))
        self.on_change()
        return command

    def find(self, number: str) -> BackgroundCommand:
        """Return a command. Raises Refused if there is none with this id."""
        command = self._commands.get(number)
        if command is None:
            raise Refused(MISSING, f"the box has no background command {number}")
        return command

    def states(self) -> list[CommandState]:
        """Return the descriptions of all commands."""
        return [command.state() for command in self._commands.values()]

    async def remove(self, number: str) -> CommandState:
        """End a command, forget it, and return its last state. Raises Refused."""
        command = self.find(number)
        await command.terminate()
        self._forget(command)
        return command.state()

    def kill(self) -> None:
        """Kill all commands at once."""
        for command in self._commands.values():
            command.kill()

    async def close(self) -> None:
        """End all commands: the agent ends."""
        running = [one for one in self._commands.values() if one.running]
        await asyncio.gather(*(command.abandon() for command in running))

    def _forget(self, command: BackgroundCommand) -> None:
        if self._commands.pop(command.id, None) is not None:
            command.log.remove()

    def _make_room(self) -> None:
        if len(self._commands) < MAX_COMMANDS:
            return
        ended = next((one for one in self._commands.values() if not one.running), None)
        if ended is None:
            text = f"the box already runs {MAX_COMMANDS} background commands; end one of them first"
            raise Refused(FULL, text)
        self._forget(ended)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    async def _run(self, command: BackgroundCommand) -> None:
        try:
            await command.run()
        except Exception:
            logger.exception("a background command failed")
        finally:
            self.on_change()


def _empty(directory: Path) -> None:
    """Remove the files in a directory, as far as possible."""
    with suppress(OSError):
        for name in os.listdir(directory):
            (directory / name).unlink()
