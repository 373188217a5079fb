"""Starts, adopts, supervises and stops the embedded object server.

The process outlives the daemon. It locks its directory and records its pid, start time and port.
The port stays the same over restarts, because running mounts use it.

::

    DIRECTORY/server       objects, credentials, state and administration socket of the process
    DIRECTORY/config.json  its configuration
    DIRECTORY/port         its port
    DIRECTORY/admin.key    the administrator's credential
    DIRECTORY/log          its output

Only `server` belongs to the process, which runs in a sandbox as an own user. What it writes there
and answers is untrusted: it can name no process of another user.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from boxd.embedded.files import read_untrusted, write_private
from boxd.embedded.process import Process, Supervisor, end_processes_of, start_ticks, user_of
from boxd.errors import Unavailable
from boxd.sandbox.sandbox import Sandbox
from boxd.sandbox.users import hand_over
from boxd.secret import Secret, random_hex
from objectserver.config import BUCKET, REGION, ServerConfig

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

START_TIMEOUT = 30.0
ADMIN_TIMEOUT = 10.0
POLL = 0.02
STOP_STEPS = ((signal.SIGTERM, 10.0), (signal.SIGKILL, 10.0))
ADMIN_KEY = "boxd-admin"
"""Access key of the administrator's credential."""
STATE_MAX = 4096
"""Maximum size of the server's state, in bytes."""
ANSWER_MAX = 64 << 20
"""Maximum length of an answer, in bytes. A list has about 90 for each volume."""
BAD_ANSWER = "the object server gave no usable answer; restart the service"
TAIL = 2000
"""Length of the end of the server's log that an error quotes, in characters."""


@dataclass(frozen=True, slots=True)
class ObjectEndpoint:
    """The address of the object server, and a credential for all objects."""

    url: str
    bucket: str
    region: str
    access_key: str
    secret: Secret = field(repr=False)


class EmbeddedObjectServer:
    """One object server with its objects below `directory`.

    Critical section: a lock serialises `start`, `stop` and `detach`. Between them only the
    supervisor starts processes.
    """

    def __init__(
        self,
        directory: Path,
        *,
        user: int | None = None,
        on_crash: Callable[[str], None] | None = None,
    ) -> None:
        """`user` is the id of the server's user; None: it has the rights of this process.

        `on_crash` receives a line for the log when the server has ended by itself.
        """
        self._directory = directory.absolute()
        self._user = user
        self._lock = asyncio.Lock()
        self._supervisor = Supervisor("the object server", self._launch, on_crash or _ignore)

    @property
    def pid(self) -> int | None:
        """Process id of the running server; None if it does not run."""
        process = self._supervisor.process
        return None if process is None else process.pid

    @property
    def url(self) -> str:
        """The URL of the server while it runs. The port stays the same over restarts."""
        return f"http://127.0.0.1:{self._last_port()}"

    async def start(self) -> ObjectEndpoint:
        """Start or adopt the server. Raises Unavailable with the reason."""
        async with self._lock:
            if self._supervisor.process is None:
                self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
                process = await self._adopt() or await self._launch()
                self._supervisor.watch(process)
            return await self._endpoint()

    async def stop(self) -> None:
        """Stop the server cleanly, even one that a dead daemon left running. Idempotent."""
        async with self._lock:
            process = await self._supervisor.release() or self._running()
            if process is not None:
                try:
                    await process.end(STOP_STEPS)
                finally:
                    process.close()

    async def detach(self) -> None:
        """Stop supervising. The server keeps running and can be adopted. Idempotent."""
        async with self._lock:
            process = await self._supervisor.release()
            if process is not None:
                process.close()

    async def issue(self, prefix: str) -> tuple[str, Secret]:
        """Create a credential for the objects below `prefix/`. Raises Unavailable."""
        access_key, secret = random_hex(16), Secret(random_hex(32))
        await self._add(access_key, secret, prefix + "/")
        return access_key, secret

    async def revoke(self, access_key: str) -> None:
        """Revoke a credential at once. An unknown one is not an error. Raises Unavailable."""
        await self._command({"op": "revoke", "access_key": access_key})

    async def credentials(self) -> list[tuple[str, str]]:
        """Return (access key, prefix) of all credentials. Raises Unavailable."""
        answer = await self._command({"op": "list"})
        try:
            return [(access_key, prefix) for access_key, prefix in answer["keys"]]
        except (KeyError, TypeError, ValueError):
            raise Unavailable(BAD_ANSWER) from None

    # -- process --

    def _state(self) -> tuple[int, int, int] | None:
        """Return pid, start time and port that the server recorded; None if they are unusable."""
        try:
            state = json.loads(read_untrusted(self._home / "state.json", STATE_MAX))
            numbers = (state["pid"], state["ticks"], state["port"])
        except (OSError, ValueError, RecursionError, KeyError, TypeError):
            return None
        pid, _, port = numbers
        usable = all(type(number) is int for number in numbers)
        return numbers if usable and 0 < pid < 1 << 31 and 0 < port < 1 << 16 else None

    def _running(self) -> Process | None:
        """Return the running server; None if it is dead."""
        state = self._state()
        if state is None:
            return None
        pid, ticks, _ = state
        try:
            user = self._home.stat().st_uid
            process = Process(pid)
        except (FileNotFoundError, ProcessLookupError):
            return None
        # Only after the process is open: now its pid has no other process.
        if start_ticks(pid) == ticks and user_of(pid) == user:
            return process
        process.close()
        return None

    async def _adopt(self) -> Process | None:
        process = self._running()
        if process is not None:
            await self._command({"op": "status"})
        return process

    async def _launch(self) -> Process:
        await asyncio.to_thread(self._prepare)
        config = ServerConfig(directory=str(self._home), port=self._last_port())
        path = self._directory / "config.json"
        owner = None if self._user is None else (self._user, self._user)
        write_private(path, config.to_json().encode("utf-8"), owner=owner)
        sandbox = None
        if self._user is not None:
            sandbox = Sandbox(self._user, "objectserver", (path,), (self._home,))
        process = Process.spawn(
            [sys.executable, "-I", "-m", "objectserver", str(path)],
            log=self._log_file,
            sandbox=sandbox,
        )
        try:
            await self._ready(process)
        except BaseException:
            process.signal(signal.SIGKILL)
            process.close()
            raise
        return process

    async def _ready(self, process: Process) -> None:
        deadline = asyncio.get_running_loop().time() + START_TIMEOUT
        while asyncio.get_running_loop().time() < deadline:
            state = self._state()
            if state is not None and state[0] == process.pid:
                write_private(self._directory / "port", str(state[2]).encode("ascii"))
                return
            if await process.wait(POLL):
                raise Unavailable(f"the object server does not start: {self._log_tail()}")
        raise Unavailable(
            f"the object server is not ready after {START_TIMEOUT:g} s; see {self._log_file}"
        )

    @property
    def _home(self) -> Path:
        """The directory of the process."""
        home = self._directory / "server"
        # Earlier releases had all files in one directory. Such a server may still run.
        return home if home.exists() else self._directory

    def _prepare(self) -> None:
        """Create the directory of the process; end what an earlier one left. Raises OSError."""
        if self._user is not None:
            end_processes_of(self._user)
        home = self._directory / "server"
        home.mkdir(mode=0o700, exist_ok=True)
        for name in ("data", "tmp", "uploads", "keys.json"):
            if (self._directory / name).exists() and not (home / name).exists():
                (self._directory / name).rename(home / name)
                os.chown(home, 0, 0)  # for `hand_over`: the user does not own everything yet
        if self._user is not None:
            hand_over(home, self._user)

    def _last_port(self) -> int:
        try:
            return int((self._directory / "port").read_text(encoding="ascii"))
        except FileNotFoundError:
            return 0

    @property
    def _log_file(self) -> Path:
        return self._directory / "log"

    def _log_tail(self) -> str:
        return self._log_file.read_text(encoding="utf-8", errors="replace")[-TAIL:].strip()

    # -- administration --

    async def _endpoint(self) -> ObjectEndpoint:
        path = self._directory / "admin.key"
        if not path.exists():
            write_private(path, random_hex(32).encode("ascii"))
        secret = Secret(path.read_text(encoding="ascii"))
        if (ADMIN_KEY, "") not in await self.credentials():
            await self._add(ADMIN_KEY, secret, "")
        return ObjectEndpoint(self.url, BUCKET, REGION, ADMIN_KEY, secret)

    async def _add(self, access_key: str, secret: Secret, prefix: str) -> None:
        await self._command(
            {"op": "add", "access_key": access_key, "secret": secret.reveal(), "prefix": prefix}
        )

    async def _command(self, command: dict[str, str]) -> dict[str, Any]:
        """Send a command to the administration socket; return the answer. Raises Unavailable."""
        descriptor = os.open(self._home, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            async with asyncio.timeout(ADMIN_TIMEOUT):
                # The path through the descriptor is short, regardless of the depth of the
                # directory.
                reader, writer = await asyncio.open_unix_connection(
                    f"/proc/self/fd/{descriptor}/admin", limit=ANSWER_MAX
                )
                try:
                    writer.write(json.dumps(command).encode("utf-8") + b"\n")
                    line = await reader.readline()
                finally:
                    writer.close()
                    await writer.wait_closed()
            answer = json.loads(line) if line else None
        except (OSError, TimeoutError) as error:
            raise Unavailable(f"the object server does not answer: {error}") from None
        except (ValueError, RecursionError):
            raise Unavailable(BAD_ANSWER) from None
        finally:
            os.close(descriptor)
        if not line:
            raise Unavailable("the object server closed the connection without an answer")
        if not isinstance(answer, dict):
            raise Unavailable(BAD_ANSWER)
        if "error" in answer:
            raise Unavailable(f"the object server refused a command: {answer['error']}")
        return answer


def _ignore(line: str) -> None:
    """Discard a line of a server without `on_crash`."""
