"""The drive of a box that mounts it itself: the mount process started, watched and ended.

Where the daemon cannot put a mount of the host into the box, it sends the credentials of the box's
volume through the tunnel. They stay in the memory of this process and of the mount process, which
gets them by a pipe.
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

from box_guest import fusefs, protocol
from box_guest.errors import DriveFailed
from box_guest.holders import holders
from box_guest.storedoors import StoreDoors

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from io import BufferedWriter

    from box_guest.forward import DriveGate
    from box_guest.process import Reaper

logger = logging.getLogger(__name__)

COMMAND = (*protocol.AGENT_COMMAND[:-1], "box_guest.mount")
ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/nonexistent", "LANG": "C.UTF-8"}
READY_S = 45.0
"""Seconds until a mount must stand; who asked for it waits a minute."""
END_STEPS = ((signal.SIGTERM, 20.0), (signal.SIGKILL, 5.0))
"""SIGTERM makes it commit; SIGKILL ends one that hangs."""
HASTY_STEPS = ((signal.SIGTERM, 2.0), (signal.SIGKILL, 1.0))
"""Where the box itself ends, without a tunnel to commit through."""
FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 30.0
STEADY_S = 60.0
"""A mount that served so long is begun again without a pause when it dies."""
HEALTH_S = 5.0
MAX_LOG = 64 * 1024
MAX_ANSWER = 64 * 1024


class BoxDrive:
    """See the module.

    Critical section: `mount`, `umount`, `close` and each new start after a crash exclude each other
    by a lock; `_wanted` is None when there is to be no mount.
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
        self._doors = StoreDoors(gate, directory, background)
        self._lock = asyncio.Lock()
        self._wanted: dict[str, Any] | None = None
        self._ended: asyncio.Future[int] | None = None
        self._pid = 0
        self._began = 0.0
        self._restarts = 0
        self._error = ""

    async def do(self, kind: str, parameters: dict[str, Any]) -> dict[str, Any]:
        """Answers one of the daemon's requests: a `drive_state`."""
        held: list[str] = []
        try:
            if kind == protocol.DRIVE_MOUNT:
                await self.mount(parameters)
            elif kind == protocol.DRIVE_UMOUNT:
                held = await self.umount(force=parameters["force"])
        except DriveFailed as error:
            return {**await self._state([]), "error": str(error)}
        except OSError as error:  # of the mount: nothing else is left to the kernel here
            return {**await self._state([]), "error": f"{self._target}: {error.strerror}"}
        return await self._state(held)

    async def mount(self, credentials: dict[str, Any]) -> None:
        """Mounts with these credentials; a mount that has them goes on as it is. DriveFailed."""
        async with self._lock:
            try:
                self._doors.open()
            except OSError as error:
                raise DriveFailed(f"{self._directory}: {error.strerror}") from None
            store = {**credentials["store"], "endpoint": self._doors.endpoint}
            wanted = {**credentials, "store": store}
            if self._serves and self._wanted == wanted:
                return
            await self._stop(END_STEPS)
            self._wanted = wanted
            self._restarts, self._error = 0, ""
            try:
                await self._start()
            except BaseException:
                await self._end(END_STEPS)
                raise

    async def umount(self, *, force: bool) -> list[str]:
        """Takes the drive away after everything written was committed; returns who uses it, and
        then it stays, unless it is taken by force. DriveFailed."""
        async with self._lock:
            if self._wanted is None:
                return []
            try:
                # In a thread: it waits for the mount process, which needs this one.
                free = not force and await asyncio.to_thread(fusefs.unmount, self._target)
            except OSError as error:
                raise DriveFailed(f"{self._target}: {error.strerror}") from None
            if not free and not force:
                return self._holders() or ["a process that has just ended"]
            await self._end(END_STEPS)
            return []

    async def close(self) -> None:
        """The box ends: nothing that was not committed can be any more."""
        async with self._lock:
            if self._wanted is not None:
                await self._end(HASTY_STEPS)

    @property
    def _serves(self) -> bool:
        return self._ended is not None and not self._ended.done()

    async def _start(self) -> None:
        """A process that serves a new mount. DriveFailed: nothing is left of it then."""
        device = fusefs.mount(self._target)
        try:
            ready = self._spawn(device)
        except OSError as error:
            fusefs.detach(self._target)
            raise DriveFailed(f"the mount does not start: {error.strerror}") from None
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

    def _spawn(self, device: int) -> int:
        """Starts the mount process; returns where it tells that it is ready. OSError."""
        reader, writer = os.pipe()
        ready, told = os.pipe()
        try:
            with self._log() as log:
                popen = subprocess.Popen(
                    [
                        *(*self._command, "--credentials-fd", str(reader)),
                        *("--fuse-fd", str(device), "--status", str(self._status)),
                    ],
                    stdin=subprocess.DEVNULL,
                    stdout=told,
                    stderr=log,
                    env=ENVIRONMENT,
                    cwd="/",
                    pass_fds=(reader, device),
                    start_new_session=True,
                )
            self._pid, popen.returncode = popen.pid, 0  # the reaper waits for it
            # A pipe takes 64 KiB without a reader; credentials are smaller.
            os.write(writer, json.dumps(self._wanted).encode())
        except BaseException:
            os.close(ready)
            raise
        finally:
            for descriptor in (reader, writer, told):
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
            raise DriveFailed(f"the drive is not mounted after {READY_S:.0f} s") from None
        finally:
            transport.close()
        if line != b"ready\n":
            raise DriveFailed(f"the mount ended: {self._last_words()}")

    async def _watch(self, ended: asyncio.Future[int]) -> None:
        """Begins the mount again when its process ended and nobody wanted that."""
        status = await ended
        pause = FIRST_PAUSE_S
        if asyncio.get_running_loop().time() - self._began > STEADY_S:
            pause = 0.0
        while True:
            async with self._lock:
                if self._is_over(ended):
                    return
                if not self._error:
                    self._error = f"the mount ended with {os.waitstatus_to_exitcode(status)}"
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
        """Whether somebody else has to do with what comes after a process."""
        return self._wanted is None or self._ended is not ended

    async def _end(self, steps: tuple[tuple[signal.Signals, float], ...]) -> None:
        """There is to be no mount, and there is none."""
        self._wanted, self._error = None, ""
        await self._stop(steps)
        await self._doors.close()

    async def _stop(self, steps: tuple[tuple[signal.Signals, float], ...]) -> None:
        """Takes the mount away from everybody and ends its process; what it has goes to the
        stores before."""
        fusefs.detach(self._target)
        for number, patience in steps:
            if self._ended is not None and not self._ended.done():
                os.kill(self._pid, number)
                await asyncio.wait([self._ended], timeout=patience)

    async def _state(self, held: list[str]) -> dict[str, Any]:
        return {
            "mounted": self._serves and not self._error,
            "error": self._error,
            "restarts": self._restarts,
            "holders": held,
            "health": await self._health() if self._serves else {},
        }

    async def _health(self) -> dict[str, Any]:
        """What the mount tells of itself; {} when it says nothing."""
        try:
            async with asyncio.timeout(HEALTH_S):
                reader, writer = await asyncio.open_unix_connection(self._status, limit=MAX_ANSWER)
                try:
                    answer = json.loads(await reader.readline())
                finally:
                    writer.close()
        except (OSError, ValueError):
            return {}
        return answer if isinstance(answer, dict) else {}

    @property
    def _status(self) -> Path:
        return self._directory / "status"

    def _holders(self) -> list[str]:
        mounts = fusefs.mounts_at(self._target)
        return holders(self._target, mounts[-1], most=protocol.MAX_HOLDERS) if mounts else []

    def _log(self) -> BufferedWriter:
        """The mount's own log, 0600; what is long is begun anew."""
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
