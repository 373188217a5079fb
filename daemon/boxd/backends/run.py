"""Runs host tools with a bound on time, and tells their own words when they fail."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from contextlib import suppress
from typing import TYPE_CHECKING

from boxd.errors import BoxdError, Unavailable
from boxd.names.words import escaped

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LC_ALL": "C.UTF-8",
}
"""Nothing of the daemon's own environment reaches the tools."""
TIMEOUT = 30.0


class CommandFailed(BoxdError):
    """A host tool refused. `status` is its exit status, `message` the end of what it printed."""

    def __init__(self, program: str, status: int, message: str) -> None:
        super().__init__(f"{program} failed with status {status}: {message}")
        self.status = status
        self.message = message


async def run(
    *argv: str, stdin: str = "", timeout: float = TIMEOUT, pass_fds: Sequence[int] = ()
) -> str:
    """Runs a tool to its end and returns its standard output.

    Raises CommandFailed for another exit status than 0, and Unavailable when the tool is not
    there or does not end in `timeout` seconds; it is dead when this returns, also by cancellation.
    """
    try:
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.PIPE if stdin else asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=ENVIRONMENT,
            pass_fds=pass_fds,
        )
    except FileNotFoundError:
        raise Unavailable(f"{argv[0]} is not installed on this host") from None
    try:
        async with asyncio.timeout(timeout):
            output, errors = await process.communicate(stdin.encode() if stdin else None)
    except TimeoutError:
        raise Unavailable(f"{argv[0]} did not end within {timeout:.0f} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()
    if process.returncode != 0:
        said = errors.decode(errors="replace").strip() or output.decode(errors="replace").strip()
        raise CommandFailed(argv[0], process.returncode or 0, said[-1000:])
    return output.decode(errors="replace")


async def run_silent(
    *argv: str,
    timeout: float = TIMEOUT,
    first: Path | None = None,
    alone: bool = False,
    pass_fds: Sequence[int] = (),
) -> int:
    """Runs a tool with all its streams on /dev/null; returns its exit status.

    For tools whose long-lived children inherit the streams: a pipe would never come to its end.
    `first` is a directory in which the tool finds other tools before any other. With `alone` it
    has a session of its own, and what it started in there ends with it when it is cut short.
    It inherits the descriptors of `pass_fds`.
    Raises Unavailable as `run` does.
    """
    try:
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            env=_environment(first),
            start_new_session=alone,
            pass_fds=pass_fds,
        )
    except FileNotFoundError:
        raise Unavailable(f"{argv[0]} is not installed on this host") from None
    try:
        async with asyncio.timeout(timeout):
            return await process.wait()
    except TimeoutError:
        raise Unavailable(f"{argv[0]} did not end within {timeout:.0f} s") from None
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                (os.killpg if alone else os.kill)(process.pid, signal.SIGKILL)
            await process.wait()


def last_words(log: Path) -> str:
    """The last message of a tool that writes its log as lines of JSON."""
    try:
        lines = log.read_text().splitlines()
    except FileNotFoundError:
        return "it said nothing"
    for line in reversed(lines):
        try:
            return escaped(str(json.loads(line)["msg"]))
        except (ValueError, KeyError):
            continue
    return "it said nothing"


def _environment(first: Path | None) -> dict[str, str]:
    if first is None:
        return ENVIRONMENT
    return ENVIRONMENT | {"PATH": f"{first}:{ENVIRONMENT['PATH']}"}
