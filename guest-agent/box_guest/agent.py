"""The agent, init process of a box: runs the tunnel and the guest socket until the box ends."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import secrets
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from box_guest import protocol
from box_guest.control.identity import reexecute
from box_guest.control.link import DaemonLink
from box_guest.control.socket import ControlServer
from box_guest.control.standby import trim_memory
from box_guest.fuse.mounts import drop_mount_right
from box_guest.shared.signals import restore_ignored

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from box_guest.config import AgentConfig, AgentPaths
    from box_guest.control.identity import Identity
    from box_guest.drive.workspace import BoxDrive
    from box_guest.process.activity import Watch
    from box_guest.process.background import BackgroundCommands
    from box_guest.process.process import Reaper
    from box_guest.ssh.relayd import Relay
    from box_guest.ssh.sessions import Services
    from box_guest.ssh.tunnel import Dialler

logger = logging.getLogger(__name__)

UMASK = 0o022
"""File mode mask of the agent and of the sessions it starts."""
CLI = Path(protocol.RUNTIME_DIR) / "bin/box-guest"
CLI_LINK = Path("/usr/local/bin/box-guest")
STOP_S = 8.0
"""Seconds to wait for commands and tasks at the end. Ending a stubborn process group takes less."""


@dataclass(frozen=True, slots=True)
class OwnProcesses:
    """The processes of the box that stay with it when it becomes another one."""

    reaper: Reaper
    commands: BackgroundCommands


class Agent:
    """The agent of one box. Only `run` changes its state."""

    def __init__(
        self, config: AgentConfig, paths: AgentPaths, identity: Identity, own: OwnProcesses
    ) -> None:
        """`identity` must be created before `config` is read, so that later changes are noticed."""
        self._config = config
        self._places = paths
        self._identity = identity
        self._reaper = own.reaper
        self._background_commands = own.commands
        self._tasks: set[asyncio.Task[None]] = set()
        self._link = DaemonLink(
            {
                "version": protocol.VERSION,
                "boot": secrets.token_hex(8),
                "forward_dir": str(paths.forward_dir),
            }
        )

    async def run(self) -> bool:
        """Serve until SIGTERM or SIGINT, then end the running commands.

        Returns True if the box has become another one: the caller then reads the run directory
        again and starts a new agent. If the random generators cannot be reseeded, the process
        re-executes itself instead, and this method does not return.
        """
        # `_serve` imports asyncssh, nine tenths of the agent's start-up time. The guest socket and
        # the reaper start before that.
        if os.getpid() == 1 and not self._config.containers:
            drop_mount_right()  # so that no child inherits it
        stopped = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stopped.set)
        control = ControlServer(self._places.guest_socket, self._config, self._link)
        try:
            await control.start()
            return await self._serve(stopped)
        finally:
            await control.close()

    async def _serve(self, stopped: asyncio.Event) -> bool:
        from box_guest.drive.workspace import BoxDrive
        from box_guest.process.activity import Watch
        from box_guest.ssh.forward import DriveGate, ForwardDir
        from box_guest.ssh.sessions import Services
        from box_guest.ssh.tunnel import Dialler

        forwards, gate = ForwardDir(self._places.forward_dir), DriveGate()
        forwards.prepare()
        services = Services(
            self._config,
            self._link,
            self._reaper,
            forwards,
            gate,
            self._background,
            self._background_commands,
        )
        drive = BoxDrive(gate, self._reaper, self._background)
        relay = self._relay(services)
        dialler = Dialler(self._places.tunnel_socket, services, relay, self._identity.changed)
        watch = Watch(self._link, services.pids, lambda: self._background_commands.awake)
        self._background_commands.on_change = watch.report
        self._link.follower = _Duties(self._link, dialler, watch, drive, services)
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
            services.close_watches()
            await drive.close()
            await dialler.close()
            watch.end()
            await self._settle()
        return not stopped.is_set()

    def _relay(self, services: Services) -> Relay | None:
        """Create the SSH server that a confidential box runs for its owner, or None."""
        if not self._config.relay_key:
            return None
        from box_guest.ssh.relayd import Relay

        return Relay(services, self._places.state_dir)

    def _renew(self, services: Services) -> None:
        """End all commands of channels and reseed, because the box has become another one.

        The channels stayed with the previous box. Everything else that runs in the box continues;
        only if this process has to execute its program again, background commands end, too.
        """
        from box_guest.control.randomness import reseed

        for command in services.commands:
            command.kill()
        if not reseed():
            self._background_commands.kill()
            reexecute()

    def _background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._discard)

    def _discard(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("a background task of the agent failed", exc_info=error)

    async def _end_commands(self, services: Services) -> None:
        waits = [asyncio.ensure_future(command.abandon()) for command in services.commands]
        if waits:
            await asyncio.wait(waits, timeout=STOP_S)

    async def _settle(self) -> None:
        """Wait for background tasks to finish, at most STOP_S seconds."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=STOP_S)


class _Duties:
    """Reacts to the tunnel coming up or going down, and to the daemon's requests."""

    def __init__(
        self,
        link: DaemonLink,
        dialler: Dialler,
        watch: Watch,
        drive: BoxDrive,
        services: Services,
    ) -> None:
        self._link = link
        self._dialler = dialler
        self._watch = watch
        self._drive = drive
        self._services = services

    def greeted(self) -> None:
        """Start reporting what keeps the box awake."""
        self._watch.begin()

    def parted(self) -> None:
        """Stop reporting what keeps the box awake."""
        self._watch.end()

    def suspend_soon(self, number: int) -> None:
        """Free memory, answer with what keeps the box awake, and close the tunnel."""
        self._services.close_watches()
        trim_memory()
        self._link.answer(number, **self._watch.count())
        self._dialler.leave()

    def drive(self, number: int, kind: str, parameters: dict[str, Any]) -> None:
        """Perform a drive request in the background and send its answer."""

        async def answer() -> None:
            self._link.answer(number, **await self._drive.do(kind, parameters))

        self._services.background(answer())


def prepare_box() -> None:
    """Set the signals, umask, working directory and the CLI's symbolic link of a box."""
    # The interpreter itself ignores these two, and restores them in commands.
    restore_ignored(keep=frozenset({signal.SIGPIPE, signal.SIGXFSZ}))
    os.umask(UMASK)
    os.chdir("/")
    if CLI.exists() and CLI_LINK.parent.is_dir() and not os.path.lexists(CLI_LINK):
        try:
            CLI_LINK.symlink_to(CLI)
        except OSError as error:
            # The root is read-only: sessions find the CLI through the last entry of their PATH.
            logger.debug("cannot create %s: %s", CLI_LINK, error)
