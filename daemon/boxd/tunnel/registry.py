"""Which box has a tunnel: listeners by box id, the live tunnel of each, waiting for one."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, TypeAlias

import asyncssh

from box_guest import protocol
from boxd.errors import Unavailable
from boxd.tunnel.channel import FAULTS, PACKET, WINDOW, Tunnel
from boxd.tunnel.control import ControlChannel
from boxd.tunnel.listener import BoxListener

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

logger = logging.getLogger(__name__)

HELLO_S = 10.0
GET_S = 30.0
QUIESCE_S = 2.0
"""An agent that has not closed its end of the tunnel in this time does not get more."""

OnRequest: TypeAlias = "Callable[[str, str, dict[str, Any]], Awaitable[dict[str, Any]]]"
OnActivity: TypeAlias = "Callable[[str, int], None]"
OnMisbehaviour: TypeAlias = "Callable[[str, str], None]"
OnUp: TypeAlias = "Callable[[Tunnel], None]"


def _untold(box_id: str, news: object) -> None:
    """Nobody wants to know."""


def _unheard(tunnel: Tunnel) -> None:
    """Nobody waits for tunnels."""


class _Entry:
    """One box: its listener, its tunnel, and the news that one of them changed."""

    def __init__(self, box_id: str, host_key: str, on_misbehaviour: OnMisbehaviour) -> None:
        """Raises asyncssh.KeyImportError."""
        self.listener = BoxListener(box_id, host_key, self.misbehave)
        self._on_misbehaviour = on_misbehaviour
        self.tunnel: Tunnel | None = None
        self.news = asyncio.Condition()
        self.misbehaved = ""
        self.closed = False

    def misbehave(self, reason: str) -> None:
        """Cuts the box off for a while, and tells why."""
        if self.closed:
            return
        self.misbehaved = reason
        box_id = self.listener.box_id
        seconds = self.listener.pause()
        if seconds is not None:
            logger.error("box %s: agent misbehaved: %s; cut off for %g s", box_id, reason, seconds)
            self._on_misbehaviour(box_id, f"agent misbehaved: {reason}")

    async def arrived(self) -> Tunnel | None:
        """The live tunnel, waited for without a bound; None when the entry is closed."""
        async with self.news:
            while not self.closed:
                if self.tunnel is not None and not self.tunnel.closed:
                    return self.tunnel
                await self.news.wait()
            return None

    async def settled(self) -> Tunnel | None:
        """The live tunnel; one that is just being made is waited for. None: there is none."""
        async with self.news:
            while self.tunnel is None or self.tunnel.closed:
                if not self.listener.connections:
                    return None
                await self.news.wait()
            return self.tunnel


async def _end(entry: _Entry) -> None:
    """Closes listener and tunnel."""
    await entry.listener.close()
    async with entry.news:
        entry.closed = True
        tunnel, entry.tunnel = entry.tunnel, None
        entry.news.notify_all()
    if tunnel is not None:
        await tunnel.close()
    entry.listener.abort()


class TunnelRegistry:
    """All tunnels of this daemon.

    Critical section: an entry's `tunnel` is replaced under its `news` lock, so that of two
    connections that say hello at once one wins and the other is closed.
    """

    def __init__(
        self,
        client_key: Path,
        on_request: OnRequest,
        on_activity: OnActivity = _untold,
        on_misbehaviour: OnMisbehaviour = _untold,
    ) -> None:
        """`client_key` is the daemon's private key file. Raises KeyImportError.

        `on_request(box id, verb, parameters)` answers requests of boxes (`protocol.REQUESTS`); its
        BoxdErrors are shown there. `on_activity(box id, shells)` is told how many detached shells a
        box has, after each hello and when it changed; `on_misbehaviour(box id, text)` why an
        agent's tunnel was cut. Both must return at once.
        """
        self._client_key = asyncssh.read_private_key(client_key)
        self.on_request = on_request
        self.on_activity = on_activity
        self.on_misbehaviour = on_misbehaviour
        self.on_up: OnUp = _unheard
        """Told of each tunnel that is up, before it can be got. Must return at once."""
        self._entries: dict[str, _Entry] = {}

    @property
    def public_key(self) -> str:
        """The daemon's public key, for the agents' configuration."""
        return self._client_key.export_public_key().decode().strip()

    async def open(self, box_id: str, directory: Path, host_key: str) -> None:
        """Listens at `directory`/tunnel.sock for the box with that public host key.

        Calling it again begins anew: a present tunnel is closed. Raises OSError.
        """
        before = self._entries.get(box_id)
        entry = _Entry(box_id, host_key, self.on_misbehaviour)
        self._entries[box_id] = entry  # first: who waits for the old one finds it
        try:
            if before is not None:
                await _end(before)
            await entry.listener.start(
                directory / protocol.TUNNEL_SOCKET,
                self._client_key,
                lambda connection: self._accept(box_id, entry, connection),
            )
        except BaseException:
            if self._entries.get(box_id) is entry:
                del self._entries[box_id]
            await _end(entry)  # who waits for it is told
            raise

    def peek(self, box_id: str) -> Tunnel | None:
        """The live tunnel, if there is one now."""
        entry = self._entries.get(box_id)
        if entry is None or entry.tunnel is None or entry.tunnel.closed:
            return None
        return entry.tunnel

    async def get(self, box_id: str, timeout: float = GET_S) -> Tunnel:
        """The box's tunnel, waited for. Raises Unavailable after `timeout` seconds."""
        entry = self._entries.get(box_id)
        if entry is None:
            raise Unavailable("the box is not running")
        try:
            async with asyncio.timeout(timeout):
                while (tunnel := await entry.arrived()) is None:
                    newer = self._entries.get(box_id)
                    if newer is None or newer is entry:
                        raise Unavailable("the box was stopped")
                    entry = newer  # it is listened for anew
                return tunnel
        except TimeoutError:
            text = f"the box's agent did not connect within {timeout:.0f} s"
            if entry.misbehaved:
                text += f" (agent misbehaved: {entry.misbehaved})"
            raise Unavailable(text) from None

    async def close(self, box_id: str) -> None:
        """Forgets a box: listener and tunnel are closed. No error if it is unknown."""
        entry = self._entries.pop(box_id, None)
        if entry is not None:
            await _end(entry)

    async def quiesce(self, box_id: str) -> int | None:
        """Takes the tunnel down before a freeze: half of a connection cannot be stored.

        No new one comes up until `open`. The agent is told, and closes its own end; one that has
        not in QUIESCE_S is cut off. Returns the number of detached shells that it told with that,
        None when it did not. Never fails because of the agent; no error without a tunnel.
        """
        entry = self._entries.get(box_id)
        if entry is None:
            return None
        await entry.listener.close()
        shells: int | None = None
        try:
            async with asyncio.timeout(QUIESCE_S):
                tunnel = await entry.settled()
                if tunnel is not None:
                    shells = await tunnel.suspend_soon()
                    await tunnel.connection.wait_closed()
        except (TimeoutError, Unavailable, protocol.ProtocolError) as error:
            logger.info("box %s: its agent did not close its tunnel: %s", box_id, error)
        if self._entries.get(box_id) is entry:
            await self.close(box_id)
        return shells

    async def close_all(self) -> None:
        """Forgets every box."""
        for box_id in list(self._entries):
            await self.close(box_id)

    async def _accept(
        self, box_id: str, entry: _Entry, connection: asyncssh.SSHClientConnection
    ) -> None:
        """Runs as a task of the connection: whatever goes wrong ends this connection only."""
        try:
            async with asyncio.timeout(HELLO_S):
                control = ControlChannel(_Side(self, entry))
                await connection.create_session(
                    lambda: control,
                    subsystem=protocol.CONTROL_SUBSYSTEM,
                    encoding=None,
                    window=WINDOW,
                    max_pktsize=PACKET,
                    request_pty=False,
                )
                hello = await control.hello
        except (*FAULTS, Unavailable) as error:
            logger.info("box %s: no hello: %s", box_id, error)
            connection.abort()
            return
        tunnel = Tunnel(box_id, connection, control, hello)
        async with entry.news:
            if entry.closed:
                replaced: Tunnel | None = tunnel
            else:
                self.on_up(tunnel)
                replaced, entry.tunnel = entry.tunnel, tunnel
                entry.misbehaved = ""
                entry.news.notify_all()
        if replaced is not None:
            await replaced.close()


class _Side:
    """What the control channels of a box need of the daemon."""

    def __init__(self, registry: TunnelRegistry, entry: _Entry) -> None:
        self._registry = registry
        self._entry = entry

    async def request(self, verb: str, params: dict[str, Any]) -> dict[str, Any]:
        return await self._registry.on_request(self._entry.listener.box_id, verb, params)

    def activity(self, shells: int) -> None:
        if not self._entry.closed:
            self._registry.on_activity(self._entry.listener.box_id, shells)

    def misbehaved(self, reason: str) -> None:
        self._entry.misbehave(reason)


def new_identity() -> tuple[bytes, str]:
    """A new ed25519 key: private in OpenSSH format, public as one line."""
    key = asyncssh.generate_private_key("ssh-ed25519")
    return key.export_private_key(), key.export_public_key().decode().strip()
