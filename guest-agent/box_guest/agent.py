"""The agent: init of a box. Starts the tunnel and the guest socket and ends with the box."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import secrets
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from box_guest import protocol
from box_guest.control import ControlServer
from box_guest.fusefs import keep_right
from box_guest.identity import execute_anew
from box_guest.link import DaemonLink
from box_guest.process import Reaper
from box_guest.standby import trim_memory

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from box_guest.activity import Watch
    from box_guest.config import AgentConfig, Places
    from box_guest.identity import Identity
    from box_guest.relayd import Relay
    from box_guest.sessions import Services
    from box_guest.tunnel import Dialler
    from box_guest.workspace import BoxDrive

logger = logging.getLogger(__name__)

UMASK = 0o022
CLI = Path(protocol.RUNTIME_DIR) / "bin/box-guest"
CLI_LINK = Path("/usr/local/bin/box-guest")
STOP_S = 8.0
"""Longer than the end of a stubborn process group takes."""


class Agent:
    """Everything of one box. `run` is its whole life; nothing else changes its state."""

    def __init__(self, config: AgentConfig, places: Places, identity: Identity) -> None:
        """`identity` was made before `config` was read."""
        self._config = config
        self._places = places
        self._identity = identity
        self._tasks: set[asyncio.Task[None]] = set()
        self._link = DaemonLink(
            {
                "version": protocol.VERSION,
                "boot": secrets.token_hex(8),
                "forward_dir": str(places.forward_dir),
            }
        )

    async def run(self) -> bool:
        """Serves until SIGTERM or SIGINT, then ends the running commands.

        True: the box has become another one, and somebody has to begin again with what stands in
        its run directory now. Where the generators cannot be seeded anew, the process executes
        itself instead, and this does not return.
        """
        # These bring asyncssh, nine tenths of the agent's start-up time: the guest socket and the
        # reaper are up before.
        stopped = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stopped.set)
        reaper = Reaper()
        control = ControlServer(self._places.guest_socket, self._config, self._link)
        try:
            await control.start()
            return await self._serve(reaper, stopped)
        finally:
            await control.close()
            reaper.close()

    async def _serve(self, reaper: Reaper, stopped: asyncio.Event) -> bool:
        from box_guest.activity import Watch
        from box_guest.forward import DriveGate, ForwardDir
        from box_guest.sessions import Services
        from box_guest.tunnel import Dialler
        from box_guest.workspace import BoxDrive

        forwards, gate = ForwardDir(self._places.forward_dir), DriveGate()
        forwards.prepare()
        services = Services(self._config, self._link, reaper, forwards, gate, self._background)
        drive = BoxDrive(gate, reaper, self._background)
        relay = self._relay(services)
        dialler = Dialler(self._places.tunnel_socket, services, relay, self._identity.changed)
        watch = Watch(self._link, lambda: {command.pid for command in services.commands})
        self._link.follower = _Duties(self._link, dialler, watch, drive, self._background)
        gc.freeze()
        gc.enable()
        dialling = asyncio.create_task(dialler.run())
        stopping = asyncio.create_task(stopped.wait())
        try:
            await asyncio.wait({dialling, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if dialling.done():
                dialling.result()
                self._renew(services)
        finally:
            stopping.cancel()
            dialling.cancel()
            await asyncio.gather(dialling, stopping, return_exceptions=True)
            await self._end_commands(services)
            await drive.close()
            await dialler.close()
            watch.end()
            await self._settle()
        return not stopped.is_set()

    def _relay(self, services: Services) -> Relay | None:
        """The SSH server of its own that a confidential box has."""
        if not self._config.relay_key:
            return None
        from box_guest.relayd import Relay

        return Relay(services, self._places.state_dir)

    def _renew(self, services: Services) -> None:
        """The box has become another one.

        Commands belong to channels, and those stayed with the box of before: they end. Everything
        else that runs in the box goes on.
        """
        from box_guest.randomness import reseed

        for command in services.commands:
            command.kill()
        if not reseed():
            execute_anew()

    def _background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("a task of the agent failed", exc_info=error)

    async def _end_commands(self, services: Services) -> None:
        ending = [asyncio.ensure_future(command.abandon()) for command in services.commands]
        if ending:
            await asyncio.wait(ending, timeout=STOP_S)

    async def _settle(self) -> None:
        """Lets the tasks of ended commands come to their end."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=STOP_S)


class _Duties:
    """What the agent does when a tunnel comes and goes, when the box is to be frozen, and when it
    is to mount its drive."""

    def __init__(
        self,
        link: DaemonLink,
        dialler: Dialler,
        watch: Watch,
        drive: BoxDrive,
        background: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self._link = link
        self._dialler = dialler
        self._watch = watch
        self._drive = drive
        self._background = background

    def greeted(self) -> None:
        self._watch.begin()

    def parted(self) -> None:
        self._watch.end()

    def suspend_soon(self, number: int) -> None:
        trim_memory()
        self._link.answer(number, shells=self._watch.count())
        self._dialler.leave()

    def drive(self, number: int, kind: str, parameters: dict[str, Any]) -> None:
        async def answer() -> None:
            self._link.answer(number, **await self._drive.do(kind, parameters))

        self._background(answer())


def prepare_box() -> None:
    """What the first process of a box sets up: file modes, working directory, the CLI's name; and
    that the right to mount, if the box has it, stays with it alone."""
    os.umask(UMASK)
    os.chdir("/")
    if os.getpid() == 1:
        keep_right()
    if CLI.exists() and CLI_LINK.parent.is_dir() and not os.path.lexists(CLI_LINK):
        try:
            CLI_LINK.symlink_to(CLI)
        except OSError as error:
            # A read-only root: sessions find the CLI by the last entry of their PATH.
            logger.debug("no %s: %s", CLI_LINK, error)
