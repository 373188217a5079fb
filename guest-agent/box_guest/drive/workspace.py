"""The drive of a box that mounts it from inside: starts, supervises and ends the mount process.

Some daemons cannot put a mount of the host into the box. Such a daemon sends the credentials of the
box's volume through the tunnel. The credentials stay in the memory of this process and of the mount
process, which reads them from a pipe.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

from box_guest import protocol
from box_guest.drive.holders import holders
from box_guest.drive.store_doors import StoreEndpoints
from box_guest.errors import DriveFailed
from box_guest.fuse import mounts

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from io import BufferedWriter

    from box_guest.process.process import Reaper
    from box_guest.ssh.forward import DriveGate

logger = logging.getLogger(__name__)

COMMAND = (*protocol.AGENT_COMMAND[:-1], "box_guest.mount", "--durable-close", "--local-locks")
"""A mount in a box delays no change: the box may be frozen at any moment, with unsent changes.
The kernel keeps its locks, because CRIU restores no others."""
ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/nonexistent", "LANG": "C.UTF-8"}
READY_S = 45.0
"""Seconds until a mount must be ready; the requester waits a minute."""
END_STEPS = ((signal.SIGTERM, 20.0), (signal.SIGKILL, 5.0))
"""(signal, seconds to wait): SIGTERM lets the mount commit; SIGKILL ends one that hangs."""
FAST_END_STEPS = ((signal.SIGTERM, 2.0), (signal.SIGKILL, 1.0))
"""The same at the end of the box, when there is no tunnel to commit through."""
FIRST_PAUSE_S = 0.2
"""Shortest pause in seconds before a failed restart is retried."""
LONGEST_PAUSE_S = 30.0
"""Longest pause in seconds before a failed restart is retried."""
STEADY_S = 60.0
"""A mount that dies after serving for this many seconds is restarted without a pause."""
HEALTH_S = 5.0
"""Seconds to wait for the mount's health report."""
MAX_LOG = 64 * 1024
"""Size above which the next start truncates the mount's log, in bytes."""
MAX_ANSWER = 64 * 1024
"""Maximum size of a health report, in bytes."""


class BoxDrive:
    """The drive of the box. `_document` is None when it must not be mounted.

    Critical section: `mount`, `umount`, `close` and each restart after a crash exclude each other
    by a lock.
    """

    def __init__(
        self,
        gate: DriveGate,
        reaper: Reaper,
        background: Callable[[Coroutine[Any, Any, None]], None],
        *,
        target: Path = Path(protocol.DRIVE_DIR),
        directory: Path = Path(protocol.GATE_DIR),
        command: tuple[str, ...] = COMMAND,
    ) -> None:
        self._reaper = reaper
        self._background = background
        self._target = target
        self._directory = directory
        self._command = command
        self._doors = StoreEndpoints(gate, directory, background)
        self._lock = asyncio.Lock()
        self._document: dict[str, Any] | None = None
        self._ended: asyncio.Future[int] | None = None
        self._pid = 0
        self._began = 0.0
        self._restarts = 0
        self._error = ""

    async def do(self, kind: str, parameters: dict[str, Any]) -> dict[str, Any]:
        """Perform one of the daemon's requests and return its answer, a `drive_state`."""
        users: list[str] = []
        try:
            if kind == protocol.DRIVE_MOUNT:
                await self.mount(parameters)
            elif kind == protocol.DRIVE_UMOUNT:
                users = await self.umount(force=parameters["force"])
        except DriveFailed as error:
            return {**await self._state([]), "error": str(error)}
        except OSError as error:  # only the mount calls raise it here
            return {**await self._state([]), "error": f"{self._target}: {error.strerror}"}
        return await self._state(users)

    async def mount(self, credentials: dict[str, Any]) -> None:
        """Mount with these credentials.

        A mount that already has them continues. Raises DriveFailed.
        """
        async with self._lock:
            try:
                self._doors.open()
            except OSError as error:
                raise DriveFailed(f"{self._directory}: {error.strerror}") from None
            store = {**credentials["store"], "endpoint": self._doors.endpoint}
            document = {**credentials, "store": store}
            if self._serves and self._document == document:
                return
            await self._stop(END_STEPS)
            self._document = document
            self._restarts, self._error = 0, ""
            try:
                await self._start()
            except BaseException:
                await self._end(END_STEPS)
                raise

    async def umount(self, *, force: bool) -> list[str]:
        """Commit everything and unmount; return the processes that use the drive.

        If a process uses the drive, it stays mounted, unless `force` is set. Raises DriveFailed.
        """
        async with self._lock:
            if self._document is None:
                return []
            try:
                # In a thread: unmounting waits for the mount process, which needs this event loop.
                free = not force and await asyncio.to_thread(mounts.unmount, self._target)
            except OSError as error:
                raise DriveFailed(f"{self._target}: {error.strerror}") from None
            if not free and not force:
                return self._holders() or ["a process that has just ended"]
            await self._end(END_STEPS)
            return []

    async def close(self) -> None:
        """End the mount because the box ends. It is too late to commit data."""
        async with self._lock:
            if self._document is not None:
                await self._end(FAST_END_STEPS)

    @property
    def _serves(self) -> bool:
        return self._ended is not None and not self._ended.done()

    async def _start(self) -> None:
        """Start a process that serves a new mount. After DriveFailed, nothing of it remains."""
        device = self._mount()
        try:
            ready = self._spawn(device)
        except OSError as error:
            mounts.detach(self._target)
            raise DriveFailed(f"the mount process cannot be started: {error.strerror}") from None
        finally:
            os.close(device)
        self._ended = self._reaper.watch(self._pid)
        try:
            await self._until_ready(ready)
        except BaseException:
            await self._stop(END_STEPS[1:])
            raise
        self._began = asyncio.get_running_loop().time()
        self._background(self._watch(self._ended))

    def _mount(self) -> int:
        try:
            return mounts.mount(self._target)
        except OSError as error:
            if error.filename != str(mounts.DEVICE):
                raise DriveFailed(
                    f"cannot mount the drive at {self._target}: {error.strerror}"
                ) from None
            raise DriveFailed(
                f"the box cannot mount its drive: {mounts.DEVICE}: {error.strerror}. It was "
                "started before the service allowed boxes to mount: stop and start it once, or "
                "recreate it"
            ) from None

    def _spawn(self, device: int) -> int:
        """Start the mount process; return a descriptor of its stdout. Raises OSError."""
        reader, writer = os.pipe()
        options = ["--credentials-fd", str(reader), "--fuse-fd", str(device)]
        options += ["--status", str(self._status)]
        ready, stdout = os.pipe()
        try:
            with self._log() as log:
                popen = subprocess.Popen(
                    [*self._command, *options],
                    stdin=subprocess.DEVNULL,
                    stdout=stdout,
                    stderr=log,
                    env=ENVIRONMENT,
                    cwd="/",
                    pass_fds=(reader, device),
                    start_new_session=True,
                )
            self._pid, popen.returncode = popen.pid, 0  # the reaper collects this process
            # A pipe holds 64 KiB without a reader; credentials are smaller.
            os.write(writer, json.dumps(self._document).encode())
        except BaseException:
            os.close(ready)
            raise
        finally:
            for descriptor in (reader, writer, stdout):
                os.close(descriptor)
        return ready

    async def _until_ready(self, ready: int) -> None:
        stream = asyncio.StreamReader()
        pipe = os.fdopen(ready, "rb", buffering=0)
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(stream), pipe
        )
        try:
            async with asyncio.timeout(READY_S):
                line = await stream.readline()
        except TimeoutError:
            raise DriveFailed(f"the drive was not ready within {READY_S:.0f} s") from None
        finally:
            transport.close()
        if line != b"ready\n":
            raise DriveFailed(f"the mount process ended: {self._last_words()}")

    async def _watch(self, ended: asyncio.Future[int]) -> None:
        """Restart the mount when its process ends unexpectedly."""
        status = await ended
        pause = FIRST_PAUSE_S
        if asyncio.get_running_loop().time() - self._began > STEADY_S:
            pause = 0.0
        while True:
            async with self._lock:
                if self._is_over(ended):
                    return
                if not self._error:
                    self._error = (
                        f"the mount process ended with status {os.waitstatus_to_exitcode(status)}"
                    )
                    logger.error("%s: %s", self._error, self._last_words())
            await asyncio.sleep(pause)
            async with self._lock:
                if self._is_over(ended):
                    return
                try:
                    self._restarts += 1
                    await self._start()
                except DriveFailed as error:
                    self._error, self._ended = str(error), ended
                    pause = min(max(2 * pause, FIRST_PAUSE_S), LONGEST_PAUSE_S)
                else:
                    self._error = ""
                    return

    def _is_over(self, ended: asyncio.Future[int]) -> bool:
        """Return whether this process was asked to end, or another one has replaced it."""
        return self._document is None or self._ended is not ended

    async def _end(self, steps: tuple[tuple[signal.Signals, float], ...]) -> None:
        """Unmount, and record that there must be no mount."""
        self._document, self._error = None, ""
        await self._stop(steps)
        await self._doors.close()

    async def _stop(self, steps: tuple[tuple[signal.Signals, float], ...]) -> None:
        """Detach the mount for all processes and end the mount process, which first commits its
        data."""
        mounts.detach(self._target)
        for number, patience in steps:
            if self._ended is not None and not self._ended.done():
                os.kill(self._pid, number)
                await asyncio.wait([self._ended], timeout=patience)

    async def _state(self, users: list[str]) -> dict[str, Any]:
        return {
            "mounted": self._serves and not self._error,
            "error": self._error,
            "restarts": self._restarts,
            "holders": users,
            "health": await self._health() if self._serves else {},
        }

    async def _health(self) -> dict[str, Any]:
        """Return the mount's health report, or {} if it does not answer."""
        try:
            async with asyncio.timeout(HEALTH_S):
                reader, writer = await asyncio.open_unix_connection(self._status, limit=MAX_ANSWER)
                try:
                    answer = json.loads(await reader.readline())
                finally:
                    writer.close()
        except (OSError, ValueError, RecursionError):
            return {}
        if not isinstance(answer, dict):
            return {}
        answer.pop("statistics", None)  # for the operator of mounts on the host
        return answer

    @property
    def _status(self) -> Path:
        return self._directory / "status"

    def _holders(self) -> list[str]:
        ids = mounts.mounts_at(self._target)
        return holders(self._target, ids[-1], most=protocol.MAX_HOLDERS) if ids else []

    def _log(self) -> BufferedWriter:
        """Open the mount's own log, mode 0600; truncate it if it is large."""
        path = self._directory / "log"
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        if path.exists() and path.stat().st_size > MAX_LOG:
            flags |= os.O_TRUNC
        return open(os.open(path, flags, 0o600), "ab")

    def _last_words(self) -> str:
        try:
            lines = (self._directory / "log").read_text("utf-8", "replace").splitlines()
        except OSError:
            return ""
        return lines[-1] if lines else ""
