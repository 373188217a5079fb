"""One command in a box without a terminal: what a request may contain, how it runs, how it ends.

A request is a strict JSON object `{cmd, env?, timeout_s?}`, or plain text that is the command.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import signal
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

from boxd.errors import BadRequest, TooLarge, Unavailable
from boxd.observation import UNOBSERVED, Work

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

    from boxd.boxes.presence.oom import OomCounter
    from boxd.observation import Observer
    from boxd.tunnel.channel import Exec, ExitStatus, Tunnel

DEFAULT_TIMEOUT_S = 300
MAX_TIMEOUT_S = 86_400
MAX_HEADER = 64 * 1024
"""Maximum size of the header line, in bytes."""
MAX_COMMAND = 128 * 1024 - 1
"""Maximum size of a command, in bytes: the most that Linux accepts as one argument."""
MAX_ENV_KEYS = 256
MAX_ENV_BYTES = 128 * 1024
MAX_DEPTH = 32
"""Maximum nesting depth of the header's JSON."""
KILL_AFTER_S = 5.0
"""Seconds from TERM to KILL, and from KILL to closing the channel."""
LOOK_S = 0.5
"""Seconds between two checks of the channel of a command that has ended."""
MOST_LEFT = 8 * 1024 * 1024
"""Bytes: more than all pipes of a command and all buffers on the way to the daemon can hold."""
TIMEOUT_CODE = 124
SIGNAL_BASE = 128

_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class ExecRequest:
    """A command for the login shell. `env` is merged over the box's session environment."""

    cmd: str
    env: Mapping[str, str] = field(default_factory=dict)
    timeout_s: int = DEFAULT_TIMEOUT_S

    @classmethod
    def checked(cls, cmd: object, env: object, timeout_s: object) -> ExecRequest:
        """Return a request from the values of a client; None: not given. Raises BadRequest."""
        return cls(_command(cmd), _environment(env), _timeout(timeout_s))


def header_fields(line: bytes) -> dict[str, Any]:
    """Return the unchecked fields of the header line (without its LF). Raises BadRequest."""
    raw = _strict_json(line)
    if not isinstance(raw, dict):
        raise BadRequest('the exec header is not a JSON object; for example {"cmd": "uname -a"}')
    return raw


def parse_header(line: bytes) -> ExecRequest:
    """Parse the header line (without its LF). Raises BadRequest, which names the mistake."""
    raw = header_fields(line)
    return ExecRequest.checked(raw.get("cmd"), raw.get("env"), raw.get("timeout_s"))


def parse_plain(body: bytes) -> ExecRequest:
    """Return a request whose whole body is the command. Raises BadRequest."""
    try:
        return ExecRequest(_command(body.decode("utf-8")))
    except UnicodeDecodeError:
        raise BadRequest("the command is not UTF-8 text") from None


def exit_code(status: ExitStatus) -> int:
    """Return the exit code as a shell shows it: 128 + n for signal n.

    Raises Unavailable if the box is gone.
    """
    if status.code is not None:
        return status.code
    if status.signal is None:
        raise Unavailable("the box stopped while the command ran")
    number = signal.Signals.__members__.get(f"SIG{status.signal}")
    return SIGNAL_BASE + (number.value if number is not None else 0)


class ExecRun:
    """A running command. One task writes its input; another one runs `pump`.

    The timer sets `_timed_out` and `_cut` once, before it touches the command and its channel; they
    are read only after the output has ended. `_read` counts the bytes that were passed on.
    """

    def __init__(
        self, channel: Exec, timeout_s: int, oom: OomCounter | None = None, oom_before: int = 0
    ) -> None:
        self._channel = channel
        self._oom = oom
        self._oom_before = oom_before
        self._timeout_s = timeout_s
        self._timed_out = False
        self._cut = False
        self._read = 0
        self._ended = False

    async def write(self, data: bytes) -> None:
        """Write standard input; wait while the command does not read.

        Does nothing after the command has ended.
        """
        if not self._ended:
            await self._channel.write(data)

    def write_eof(self) -> None:
        """Close standard input."""
        if not self._ended:
            self._channel.write_eof()

    async def pump(self, emit: Callable[[str, bytes], Awaitable[None]]) -> int:
        """Pass all output to `emit(stream, data)`, wait for the end, and return the exit code.

        Both streams are drained first. Raises Unavailable if the box is gone, or does not complete
        the output.
        """
        limit = asyncio.create_task(self._limit(), name="exec timeout")
        try:
            async for stream, data in self._channel.output():
                await emit(stream, data)
                self._read += len(data)
            status = await self._channel.wait()
        finally:
            limit.cancel()
        self._ended = True
        await self._report_oom(emit)
        if self._timed_out:
            text = f"boxd: the command was ended after its timeout of {self._timeout_s} s\n"
            await emit("stderr", text.encode())
            return TIMEOUT_CODE
        if self._cut:
            raise Unavailable("the box did not send all output of a command that had ended")
        return exit_code(status)

    async def _report_oom(self, emit: Callable[[str, bytes], Awaitable[None]]) -> None:
        """Add a line to stderr if the kernel killed a process because the box was out of memory."""
        if self._oom is None:
            return
        count = await self._oom.read() - self._oom_before
        if count > 0:
            line = self._oom.sentence(count, "while the command ran")
            await emit("stderr", f"boxd: {line}\n".encode())

    async def end(self) -> None:
        """End the command's process group if it still runs, and close the channel."""
        if not self._ended:
            self._ended = True
            await self._close()

    async def _limit(self) -> None:
        """End a command that exceeds its timeout.

        Reading its output may take longer, because the agent reports the end of a command before it
        has sent all output.
        """
        await asyncio.sleep(self._timeout_s)
        for name in ("TERM", "KILL"):
            if self._channel.ended:
                break
            self._timed_out = True
            self._channel.send_signal(name)
            await asyncio.sleep(KILL_AFTER_S)
        if self._channel.ended:
            await self._rest()
        self._cut = True
        await self._close()

    async def _rest(self) -> None:
        """Wait until the output of an ended command must be complete.

        It is complete if the box has sent nothing for KILL_AFTER_S, or has sent more than an ended
        command can have buffered.
        """
        # For a moment the agent also passes on the output of processes left behind by the command.
        await asyncio.sleep(KILL_AFTER_S)
        read, waited = self._read, 0.0
        while waited < KILL_AFTER_S and self._read - read < MOST_LEFT:
            await asyncio.sleep(LOOK_S)
            if not self._channel.unread:
                waited += LOOK_S

    async def _close(self) -> None:
        # The agent ends the process group when its channel closes, even if it confirms that late.
        with contextlib.suppress(TimeoutError):
            await self._channel.end()


@contextlib.asynccontextmanager
async def running(
    tunnel: Tunnel,
    request: ExecRequest,
    env: Mapping[str, str],
    oom: OomCounter | None = None,
    *,
    observer: Observer = UNOBSERVED,
) -> AsyncIterator[ExecRun]:
    """Yield the running command, which has ended when the context ends.

    The variables of the request override `env`.
    """
    with observer.work(Work.EXEC):
        oom_before = 0 if oom is None else await oom.read()
        channel = await tunnel.start(request.cmd, env={**env, **request.env})
        run = ExecRun(channel, request.timeout_s, oom, oom_before)
        try:
            yield run
        finally:
            await run.end()


def _strict_json(line: bytes) -> object:
    if len(line) > MAX_HEADER:
        raise BadRequest(f"the exec header is longer than {MAX_HEADER} bytes")
    try:
        value = json.loads(
            line.decode("utf-8"), parse_constant=_no_constant, object_pairs_hook=_unique
        )
    except UnicodeDecodeError:
        raise BadRequest("the exec header is not UTF-8") from None
    except RecursionError:
        raise BadRequest(f"the exec header is nested deeper than {MAX_DEPTH}") from None
    except ValueError as error:
        raise BadRequest(f"the exec header is not valid JSON: {error}") from None
    if _depth(value) > MAX_DEPTH:
        raise BadRequest(f"the exec header is nested deeper than {MAX_DEPTH}")
    return value


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        raise ValueError("an object has the same key twice")
    return values


def _depth(value: object) -> int:
    deepest, todo = 0, [(value, 1)]
    while todo:
        item, depth = todo.pop()
        if isinstance(item, dict | list):
            deepest = max(deepest, depth)
            children = item.values() if isinstance(item, dict) else item
            todo.extend((child, depth + 1) for child in children)
    return deepest


def _command(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise BadRequest("cmd must be a non-empty string")
    size = len(_utf8(value, "cmd"))
    if size > MAX_COMMAND:
        raise TooLarge(f"the command has {size} bytes; at most {MAX_COMMAND} are allowed")
    return value


def _environment(value: object) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise BadRequest("env must be an object of strings")
    if len(value) > MAX_ENV_KEYS:
        raise BadRequest(f"env has {len(value)} keys; at most {MAX_ENV_KEYS} are allowed")
    total = 0
    for key, item in value.items():
        if _KEY.fullmatch(key) is None:
            raise BadRequest("every key of env must be a shell identifier: [A-Za-z_][A-Za-z0-9_]*")
        if not isinstance(item, str):
            raise BadRequest(f"env: the value of {key} is not a string")
        total += len(key) + len(_utf8(item, f"env: the value of {key}"))
    if total > MAX_ENV_BYTES:
        raise BadRequest(f"env has {total} bytes; at most {MAX_ENV_BYTES} are allowed")
    return value


def _utf8(text: str, what: str) -> bytes:
    if "\0" in text:
        raise BadRequest(f"{what} contains a NUL character")
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError:
        raise BadRequest(f"{what} contains half of a surrogate pair") from None


def _timeout(value: object) -> int:
    if value is None:
        return DEFAULT_TIMEOUT_S
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MAX_TIMEOUT_S:
        raise BadRequest(f"timeout_s must be a whole number from 1 to {MAX_TIMEOUT_S}")
    return value
