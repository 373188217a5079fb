"""The tunnels of all boxes: listeners by box id, the live tunnel of each, and waiting for it."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, TypeAlias

import asyncssh

from box_guest import protocol
from boxd.errors import Unavailable
from boxd.tunnel.channel import FAULTS, PACKET, WINDOW, Tunnel
from boxd.tunnel.control import ControlChannel
from boxd.tunnel.listener import Bind, BoxListener

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from boxd.model.presence import Presence

logger = logging.getLogger(__name__)

HELLO_S = 10.0
"""Seconds within which a connection must send hello."""
GET_S = 30.0
"""Default seconds to wait for a tunnel."""
QUIESCE_S = 2.0
"""Seconds that an agent gets to close its end of the tunnel before a freeze."""

OnRequest: TypeAlias = "Callable[[str, str, dict[str, Any]], Awaitable[dict[str, Any]]]"
OnActivity: TypeAlias = "Callable[[str, Presence], None]"
OnMisbehaviour: TypeAlias = "Callable[[str, str], None]"
OnUp: TypeAlias = "Callable[[Tunnel], None]"


def _untold(box_id: str, news: object) -> None:
    """Ignore the event: the default callback."""


def _unheard(tunnel: Tunnel) -> None:
    """Ignore the tunnel: the default callback."""


class _Entry:
    """One box: its listener, its tunnel, and a condition that signals changes of both."""

    def __init__(self, box_id: str, host_key: str, on_misbehaviour: OnMisbehaviour) -> None:
        """Raises asyncssh.KeyImportError."""
        self.listener = BoxListener(box_id, host_key, self.misbehave)
        self._on_misbehaviour = on_misbehaviour
        self.tunnel: Tunnel | None = None
        self.news = asyncio.Condition()
        self.misbehaved = ""
        self.closed = False

    def misbehave(self, reason: str) -> None:
        """Cut the box off for a while, and report the reason."""
        if self.closed:
            return
        self.misbehaved = reason
        box_id = self.listener.box_id
        seconds = self.listener.pause()
        if seconds is not None:
            logger.error("box %s: agent misbehaved: %s; cut off for %g s", box_id, reason, seconds)
            self._on_misbehaviour(box_id, f"agent misbehaved: {reason}")

    async def arrived(self) -> Tunnel | None:
        """Wait for the live tunnel without a timeout; return None when the entry is closed."""
        async with self.news:
            while not self.closed:
                if self.tunnel is not None and not self.tunnel.closed:
                    return self.tunnel
                await self.news.wait()
            return None

    async def settled(self) -> Tunnel | None:
        """Return the live tunnel, or wait for one that is being set up; None if there is none."""
        async with self.news:
            while self.tunnel is None or self.tunnel.closed:
                if not self.listener.connections:
                    return None
                await self.news.wait()
            return self.tunnel


async def _end(entry: _Entry) -> None:
    """Close the listener and the tunnel."""
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

    Critical section: an entry's `tunnel` is replaced under its `news` lock. So if two connections
    send hello at the same time, one wins and the other is closed.
    """

    def __init__(
        self,
        client_key: Path,
        bind: Bind,
        on_request: OnRequest,
        on_activity: OnActivity = _untold,
        on_misbehaviour: OnMisbehaviour = _untold,
    ) -> None:
        """`client_key` is the daemon's private key file. Raises KeyImportError.

        `bind` returns the socket on which a box's agent dials.
        `on_request(box id, verb, parameters)` answers requests of boxes (`protocol.REQUESTS`); the
        text of its BoxdErrors is shown in the box. `on_activity(box id, presence)` receives
        what keeps a box awake without a client, after each hello and whenever it changes.
        `on_misbehaviour(box id, text)` receives the reason when an agent's tunnel was cut. The last
        two must return at once.
        """
        self._client_key = asyncssh.read_private_key(client_key)
        self._bind = bind
        self.on_request = on_request
        self.on_activity = on_activity
        self.on_misbehaviour = on_misbehaviour
        self.on_up: OnUp = _unheard
        """Called with each new tunnel before `get` can return it. Must return at once."""
        self._entries: dict[str, _Entry] = {}

    @property
    def public_key(self) -> str:
        """The daemon's public key, for the agents' configuration."""
        return self._client_key.export_public_key().decode().strip()

    async def open(self, box_id: str, host_key: str) -> None:
        """Listen for the box with this public host key.

        A second call starts over: it closes a live tunnel. Raises OSError.
        """
        before = self._entries.get(box_id)
        entry = _Entry(box_id, host_key, self.on_misbehaviour)
        self._entries[box_id] = entry  # set first: waiters of the old entry then find the new one
        try:
            if before is not None:
                await _end(before)
            await entry.listener.start(
                self._bind,
                self._client_key,
                lambda connection: self._accept(box_id, entry, connection),
            )
        except BaseException:
            if self._entries.get(box_id) is entry:
                del self._entries[box_id]
            await _end(entry)  # wake its waiters
            raise

    def peek(self, box_id: str) -> Tunnel | None:
        """Return the live tunnel, or None."""
        entry = self._entries.get(box_id)
        if entry is None or entry.tunnel is None or entry.tunnel.closed:
            return None
        return entry.tunnel

    async def get(self, box_id: str, timeout: float = GET_S) -> Tunnel:
        """Wait for the box's tunnel and return it. Raises Unavailable after `timeout` seconds."""
        entry = self._entries.get(box_id)
        if entry is None:
            raise Unavailable("the box is not running")
        try:
            async with asyncio.timeout(timeout):
                while (tunnel := await entry.arrived()) is None:
                    newer = self._entries.get(box_id)
                    if newer is None or newer is entry:
                        raise Unavailable("the box was stopped")
                    entry = newer  # the box has a new listener
                return tunnel
        except TimeoutError:
            text = f"the box's agent did not connect within {timeout:.0f} s"
            if entry.misbehaved:
                text += f" (agent misbehaved: {entry.misbehaved})"
            raise Unavailable(text) from None

    async def close(self, box_id: str) -> None:
        """Close the listener and the tunnel of a box. Does nothing for an unknown box."""
        entry = self._entries.pop(box_id, None)
        if entry is not None:
            await _end(entry)

    async def quiesce(self, box_id: str) -> Presence | None:
        """Take the tunnel down before a freeze: a checkpoint cannot store half of a connection.

        No new tunnel is accepted until `open`. The method asks the agent to close its own end, and
        cuts the agent off after QUIESCE_S. Returns what keeps the box awake, from the agent's
        answer, or None without an answer. Never fails because of the agent; does nothing without a
        tunnel.
        """
        entry = self._entries.get(box_id)
        if entry is None:
            return None
        await entry.listener.close()
        presence: Presence | None = None
        try:
            async with asyncio.timeout(QUIESCE_S):
                tunnel = await entry.settled()
                if tunnel is not None:
                    presence = await tunnel.suspend_soon()
                    await tunnel.connection.wait_closed()
        except (TimeoutError, Unavailable, protocol.ProtocolError) as error:
            logger.info("box %s: its agent did not close its tunnel: %s", box_id, error)
        if self._entries.get(box_id) is entry:
            await self.close(box_id)
        return presence

    async def close_all(self) -> None:
        """Close the listeners and tunnels of all boxes."""
        for box_id in list(self._entries):
            await self.close(box_id)

    async def _accept(
        self, box_id: str, entry: _Entry, connection: asyncssh.SSHClientConnection
    ) -> None:
        """Set up one connection in its own task: a failure ends only this connection."""
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
            logger.info("box %s: the agent sent no hello: %s", box_id, error)
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
    """Connects the control channels of a box to the registry's callbacks."""

    def __init__(self, registry: TunnelRegistry, entry: _Entry) -> None:
        self._registry = registry
        self._entry = entry

    async def request(self, verb: str, params: dict[str, Any]) -> dict[str, Any]:
        return await self._registry.on_request(self._entry.listener.box_id, verb, params)

    def activity(self, presence: Presence) -> None:
        if not self._entry.closed:
            self._registry.on_activity(self._entry.listener.box_id, presence)

    def misbehaved(self, reason: str) -> None:
        self._entry.misbehave(reason)


def new_identity() -> tuple[bytes, str]:
    """Create an ed25519 key pair.

    Returns the private key in OpenSSH format, and the public key as one line.
    """
    key = asyncssh.generate_private_key("ssh-ed25519")
    return key.export_private_key(), key.export_public_key().decode().strip()
