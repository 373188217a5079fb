"""One command in a box, without a terminal: what may be asked for, how it runs, how it ends.

A request is a strict JSON object `{cmd, env?, timeout_s?}` or plain text that is the command.
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

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

    from boxd.tunnel.channel import Exec, ExitStatus, Tunnel

DEFAULT_TIMEOUT_S = 300
MAX_TIMEOUT_S = 86_400
MAX_HEADER = 64 * 1024
"""Bytes of the header line."""
MAX_COMMAND = 128 * 1024 - 1
"""Bytes of a command: what Linux takes as one argument."""
MAX_ENV_KEYS = 256
MAX_ENV_BYTES = 128 * 1024
MAX_DEPTH = 32
"""Nesting of the header's JSON."""
KILL_AFTER_S = 5.0
"""From TERM to KILL, and from KILL to giving the channel up."""
LOOK_S = 0.5
"""How often a channel is looked at whose command has ended."""
MOST_LEFT = 8 * 1024 * 1024
"""Bytes. More than a command's pipes, and all that lies between them and here, can hold."""
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
        """A request of what a client gave; None of the latter two: not given. BadRequest."""
        return cls(_command(cmd), _environment(env), _timeout(timeout_s))


def parse_header(line: bytes) -> ExecRequest:
    """Reads the header line (without its LF). BadRequest names what is wrong with it."""
    raw = _strict_json(line)
    if not isinstance(raw, dict):
        raise BadRequest('the exec header is not a JSON object; for example {"cmd": "uname -a"}')
    return ExecRequest.checked(raw.get("cmd"), raw.get("env"), raw.get("timeout_s"))


def parse_plain(body: bytes) -> ExecRequest:
    """A request whose whole body is the command."""
    try:
        return ExecRequest(_command(body.decode("utf-8")))
    except UnicodeDecodeError:
        raise BadRequest("the command is not UTF-8 text") from None


def exit_code(status: ExitStatus) -> int:
    """Exit code as a shell shows it: 128 + n for signal n. Unavailable when the box went away."""
    if status.code is not None:
        return status.code
    if status.signal is None:
        raise Unavailable("the box went away while the command ran")
    number = signal.Signals.__members__.get(f"SIG{status.signal}")
    return SIGNAL_BASE + (number.value if number is not None else 0)


class ExecRun:
    """A running command. One task writes its input, another one runs `pump`.

    `_timed_out` and `_cut` are set once by the timer, before it touches the command and its
    channel, and read only after the output has ended. `_read` counts the bytes that were passed on.
    """

    def __init__(self, channel: Exec, timeout_s: int) -> None:
        self._channel = channel
        self._timeout_s = timeout_s
        self._timed_out = False
        self._cut = False
        self._read = 0
        self._ended = False

    async def write(self, data: bytes) -> None:
        """Standard input; waits while the command does not read. Nothing happens once it ended."""
        if not self._ended:
            await self._channel.write(data)

    def write_eof(self) -> None:
        """End of standard input."""
        if not self._ended:
            self._channel.write_eof()

    async def pump(self, emit: Callable[[str, bytes], Awaitable[None]]) -> int:
        """Passes all output to `emit(stream, data)`, waits for the end, returns the exit code.

        Both streams are drained first. Unavailable when the box went away, or did not come to the
        end of the output.
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
        if self._timed_out:
            text = f"boxd: the command was ended after its timeout of {self._timeout_s} s\n"
            await emit("stderr", text.encode())
            return TIMEOUT_CODE
        if self._cut:
            raise Unavailable("the box did not hand over all output of a command that had ended")
        return exit_code(status)

    async def end(self) -> None:
        """Ends the command's whole process group if it still runs, and lets go of the channel."""
        if not self._ended:
            self._ended = True
            await self._close()

    async def _limit(self) -> None:
        """Ends a command that goes on for too long; what it wrote may be read for longer.

        The agent tells of the end of a command before it has sent all output.
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
        """Until the box has let the reader wait for too long, or has sent more than a command can
        have left: the agent closes the channel of one that has ended before."""
        # For a moment the agent also passes on what others write that the command has left behind.
        await asyncio.sleep(KILL_AFTER_S)
        read, waited = self._read, 0.0
        while waited < KILL_AFTER_S and self._read - read < MOST_LEFT:
            await asyncio.sleep(LOOK_S)
            if not self._channel.unread:
                waited += LOOK_S

    async def _close(self) -> None:
        # The agent ends the group when its channel closes, also when it is late to say so.
        with contextlib.suppress(TimeoutError):
            await self._channel.end()


@contextlib.asynccontextmanager
async def running(
    tunnel: Tunnel, request: ExecRequest, env: Mapping[str, str]
) -> AsyncIterator[ExecRun]:
    """Starts the command, with `env` beneath its own; when the context is left, it has ended."""
    channel = await tunnel.start(request.cmd, env={**env, **request.env})
    run = ExecRun(channel, request.timeout_s)
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
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key stands twice in an object")
    return found


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
        raise BadRequest(f"{what} holds a NUL character")
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError:
        raise BadRequest(f"{what} holds half of a surrogate pair") from None


def _timeout(value: object) -> int:
    if value is None:
        return DEFAULT_TIMEOUT_S
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MAX_TIMEOUT_S:
        raise BadRequest(f"timeout_s must be a whole number from 1 to {MAX_TIMEOUT_S}")
    return value
