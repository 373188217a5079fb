"""The service's side of `criu_relay`: checks a restored box before any of its processes runs."""

from __future__ import annotations

import asyncio
import os
import shlex
import socket
import sys
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from boxd.backends.checkpoint import criu_config, criu_relay
from boxd.errors import BoxdError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
    from pathlib import Path

PROGRAM = "criu"
"""runc looks for a program with this name."""
_SOCKET = "gate"
_ASKED = "asked"
_LONGEST = 32
"""Maximum size of a request from the relay, in bytes."""
_TEXT = """#!/bin/sh
if mkdir {asked} 2>/dev/null; then
    case "$1 $2" in
    "swrk "[0-9])
        printf '{version}' >&"$2"
        read -r _ <&"$2"
        exit 0 ;;
    esac
fi
exec {relay} "$@"
"""
"""runc first asks CRIU for its version. This script answers in 1 ms. CRIU takes 10 ms (*measured*),
and the relay another 10 ms. A runc that does not ask for the version first treats the answer as an
error of its restore. The shell can use only one-digit descriptors; for any other descriptor, the
relay forwards the request to CRIU."""


@dataclass(frozen=True, slots=True)
class Steps:
    """What the service does during a restore. Both get the pid of the box's first process.

    `check` is called when all mounts exist, before any process runs. It raises BoxdError for a box
    that must not run. `connect` is called when only the namespaces exist, and gives the box its
    network. It is None for a box without a user namespace, whose network namespace exists before.
    """

    check: Callable[[int], Awaitable[None]]
    connect: Callable[[int], Awaitable[None]] | None = None


class Gate:
    """Answers the relay of one restore.

    `refusal` is an error of a step. `permitted`: processes of the box may have run. Each gate needs
    its own directory.
    """

    def __init__(self, directory: Path, steps: Steps) -> None:
        self._directory = directory
        self._steps = steps
        self.refusal: BoxdError | None = None
        self.permitted = False

    def program(self, criu: Path, mark: Path, cgroups: Iterable[Path]) -> Path:
        """Return the program that runc starts in place of CRIU.

        The program creates `mark` before a process may run. `cgroups` are the files through which
        the relay joins the service's own cgroups.
        """
        interpreter = (sys.executable, "-I", "-S", criu_relay.__file__)
        places = (str(criu), str(self._directory / _SOCKET), str(mark))
        asked = self._directory / _ASKED
        text = _TEXT.format(
            asked=shlex.quote(str(asked)),
            version="".join(f"\\{byte:03o}" for byte in criu_relay.version(*criu_config.OLDEST)),
            relay=shlex.join([*interpreter, *places, "\n".join(map(str, cgroups))]),
        )
        place = self._directory / PROGRAM
        self._directory.mkdir(mode=0o700, exist_ok=True)
        with suppress(FileNotFoundError):
            asked.rmdir()
        # Linux cannot execute a file that is open for writing, so this replaces the file instead.
        if not place.exists() or place.read_text() != text:
            new = place.with_name(f"{PROGRAM}.new")
            new.write_text(text)
            new.chmod(0o700)
            new.rename(place)
        return place

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Answer requests of the relay within this context."""
        self._directory.mkdir(mode=0o700, exist_ok=True)
        place = self._directory / _SOCKET
        place.unlink(missing_ok=True)
        server = await asyncio.start_unix_server(
            self._answer, sock=_listener(place), limit=_LONGEST
        )
        try:
            yield
        finally:
            server.close()
            await server.wait_closed()
            place.unlink(missing_ok=True)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the relay after `connect`, or if `check` accepts the box.

        Without an answer no process runs, and the restore may be repeated unless it is refused.
        """
        try:
            what, pid = (await reader.readline()).decode().split()
            if what == criu_relay.CONNECT:
                if self._steps.connect is not None:
                    await self._steps.connect(int(pid))
            else:
                await self._steps.check(int(pid))
                self.permitted = True
            writer.write(criu_relay.PERMISSION)
            await writer.drain()
        except BoxdError as error:
            self.refusal = error
        except (OSError, ValueError):
            pass  # the box, CRIU or the relay has ended
        finally:
            writer.close()


def _listener(place: Path) -> socket.socket:
    """Bind a socket to a path of any length, despite the kernel's limit of 107 bytes."""
    directory = os.open(place.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(f"/proc/self/fd/{directory}/{place.name}")
    finally:
        os.close(directory)
    return listener
