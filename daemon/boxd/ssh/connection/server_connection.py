"""Protocol adapter only. One connection at the front door, from its first byte to its last.

No box is created, woken or looked up before the client has proved its key.
"""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, cast

import asyncssh
from asyncssh.constants import (
    DISC_BY_APPLICATION,
    DISC_NO_MORE_AUTH_METHODS_AVAILABLE,
    DISC_TOO_MANY_CONNECTIONS,
    OPEN_ADMINISTRATIVELY_PROHIBITED,
    OPEN_RESOURCE_SHORTAGE,
)

from box_guest.shared.backpressure import Backpressure
from box_guest.shared.command_bytes import take_any_command
from box_guest.shared.end_of_writing import on_end_of_writing
from box_guest.shared.farewell import disconnect
from box_guest.shared.wire import send_no_padding
from boxd.errors import BoxdError, Forbidden, Unsupported
from boxd.names.words import escaped
from boxd.ssh.admin.console import run_audited
from boxd.ssh.cli import registry
from boxd.ssh.cli.command import Door, Result
from boxd.ssh.cli.verbs.catalog import images_table
from boxd.ssh.connection.agent_forward import forward_no_agent
from boxd.ssh.connection.auth import Authentication
from boxd.ssh.connection.env_limits import Environment
from boxd.ssh.connection.forward import Dial, End, Forwarder, to_port, to_socket
from boxd.ssh.connection.jump import ONLY_RELAYS, Jumps, dial_relay
from boxd.ssh.connection.limits import CHANNELS_PER_OWNER, Ending, Place
from boxd.ssh.connection.meter import Meter
from boxd.ssh.connection.relay import RelaySession
from boxd.ssh.connection.router import (
    Refused,
    Route,
    ToBox,
    ToRelay,
    ToShare,
    ToSudo,
    ToText,
    route,
)
from boxd.ssh.connection.share_target import ShareTarget
from boxd.ssh.connection.target import BoxTarget
from boxd.ssh.connection.text import RefusalSession, TextSession
from boxd.tasks import BackgroundTasks

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from boxd.boxes.lifecycle.holds import Attachment
    from boxd.model.progress import Progress
    from boxd.principal import Principal
    from boxd.ssh.cli.command import Stdio
    from boxd.ssh.connection.listener_state import Hall
    from boxd.ssh.connection.session import Session
    from boxd.ssh.connection.target import Attach, Target

SESSIONS_PER_CONNECTION = 10
CHANNELS_PER_CONNECTION = 64
_STOPS = "the service stops; connect again when it is back"
"""What clients print when their connection is ended with the door."""

_log = logging.getLogger(__name__)


class Visitor(asyncssh.SSHServer):
    """One connection. See the module."""

    def __init__(self, hall: Hall) -> None:
        self.tasks = BackgroundTasks()
        self._hall = hall
        self._auth = Authentication(hall.administrators)
        self._place: Place | None = None
        self._open: set[Callable[[], None]] = set()
        self._sessions = 0
        self._channels = 0
        self._route: Route | None = None
        self._target: Target | None = None
        self._jumps: Jumps[Target] | None = None
        self._address = ""
        self._conn: asyncssh.SSHServerConnection
        self._meter: Meter

    # --- before authentication -----------------------------------------------------------

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        """Counts the stranger, or turns it away before the key exchange."""
        self._conn = conn
        peer = conn.get_extra_info("peername")
        self._address = address = str(peer[0]) if peer else ""
        if not self._hall.draining:
            self._place = self._hall.limits.admit(address, self._lose_place)
        if self._place is not None:
            self._meter = Meter(conn)
            Backpressure(conn)
            send_no_padding(conn)
            self._hall.visitors.add(self)
        else:
            _log.debug("connection from %s dropped by a limit", address)
            conn.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Ends all that the connection did."""
        self.tasks.cancel()
        self._hall.visitors.discard(self)
        for released in list(self._open):
            released()  # a channel that was being opened hears nothing of the end
        if self._place is not None:
            self._hall.limits.ended(self._place, self._ending(exc))

    def begin_auth(self, username: str) -> bool:
        """Everybody has to prove a key."""
        return True

    def public_key_auth_supported(self) -> bool:
        """The one method."""
        return True

    def validate_public_key(self, username: str, key: asyncssh.SSHKey) -> bool:
        """Whether the key may be used; it is not proved yet."""
        accepted = self._auth.offer(username, key)
        if self._auth.exhausted:
            text = "too many authentication failures"
            disconnect(self._conn, DISC_NO_MORE_AUTH_METHODS_AVAILABLE, text)
            return False
        return accepted

    def auth_completed(self) -> None:
        """The key is proved: owner and username are bound."""
        principal = self._auth.complete()
        self._meter.proved = True
        if refusal := self._hall.limits.authenticated(self._held_place, principal.owner):
            disconnect(self._conn, DISC_TOO_MANY_CONNECTIONS, refusal)
            return
        self._hall.operations.callers.came(principal, self._address)
        self._hall.operations.callers.seen(principal)
        flavors = frozenset(flavor.name for flavor in self._hall.operations.catalog.flavors())
        self._route = route(self._auth.username, flavors)
        self._target = self._target_of(self._route, principal)
        if self._target is not None and not self._target.forwards_agent:
            forward_no_agent(self._conn)
        if isinstance(self._route, ToRelay):
            self._jumps = Jumps(flavors, self._relayed(principal))

    def _target_of(self, to: Route, principal: Principal) -> Target | None:
        operations = self._hall.operations
        match to:
            case ToBox():
                return BoxTarget(operations, principal, to, self._door())
            case ToShare(token):
                return ShareTarget(operations, token, self._hall.limits)
            case _:
                return None

    def _relayed(self, principal: Principal) -> Callable[[ToBox], Target]:
        """What leads to the SSH servers inside of boxes."""
        operations, door, key = self._hall.operations, self._door(), self._auth.public_key
        return lambda to: BoxTarget(operations, principal, to, door, key)

    # --- channels ------------------------------------------------------------------------

    def session_requested(self) -> tuple[asyncssh.SSHServerChannel[bytes], Session]:
        """A session channel: relayed to the box, or answered here."""
        chan = self._conn.create_server_channel()
        Environment(chan)
        take_any_command(chan)
        # Asyncssh awaits it, a step of the loop later. Channels that the client has closed before
        # it asked are counted out by then, also when all of that came at once.
        return chan, cast("Session", self._session(chan))

    async def _session(self, chan: asyncssh.SSHServerChannel[bytes]) -> Session:
        if self._sessions >= SESSIONS_PER_CONNECTION:
            raise asyncssh.ChannelOpenError(
                OPEN_RESOURCE_SHORTAGE,
                f"a connection carries at most {SESSIONS_PER_CONNECTION} sessions",
            )
        released = self._count_channel(is_session=True)
        if (barred := self._barred()) is not None:
            return RefusalSession(self.tasks, released, barred)
        if self._target is not None:
            relay = RelaySession(self.tasks, released, self._attach_to(self._target))
            on_end_of_writing(chan, relay.output_unwanted)
            return relay
        return self._text_session(released)

    def _text_session(self, released: Callable[[], None]) -> Session:
        if isinstance(self._route, ToText):
            answers = {"images": self._catalog, "cli": self._command, "help": self._help}
            return TextSession(self.tasks, released, answers[self._route.what])
        if isinstance(self._route, ToSudo):
            return TextSession(self.tasks, released, self._administer)
        return RefusalSession(self.tasks, released, self._refusal())

    def _barred(self) -> BoxdError | None:
        """Why the owner gets nothing any more, whatever it came for."""
        if isinstance(self._route, ToSudo):
            if self._principal.owner in self._hall.administrators:
                return None
            return Forbidden("this key is no administrator's any more")
        try:
            self._hall.operations.callers.check_admitted(self._principal)
        except BoxdError as error:
            return error
        return None

    def _refusal(self) -> BoxdError:
        """Why there is nothing for this user."""
        match self._route:
            case Refused(error):
                return error
            case ToRelay():
                return Unsupported(self._door().named(ONLY_RELAYS))
            case _:
                return Unsupported("this user has no box to forward to")

    async def connection_requested(
        self, dest_host: str, dest_port: int, orig_host: str, orig_port: int
    ) -> End:
        """`-L`, `-W`, `-D`: the box dials a port; `-J` by the relay: its own SSH server."""
        if self._jumps is not None:
            return await self._forward(dial_relay, self._jumps.target(dest_host), "relay")
        return await self._forward(to_port(dest_host, dest_port), self._target)

    async def unix_connection_requested(self, dest_path: str) -> End:
        """`-L` to a Unix socket of the box."""
        return await self._forward(to_socket(dest_path), self._target)

    async def close(self) -> None:
        """Ends the connection, telling the client why, and waits for its tasks."""
        disconnect(self._conn, DISC_BY_APPLICATION, _STOPS)
        await self.tasks.close()
        await self._conn.wait_closed()

    async def _forward(self, dial: Dial, target: Target | None, why: str = "forward") -> End:
        if (barred := self._barred()) is not None or target is None:
            text = escaped(str(barred or self._refusal()))
            raise asyncssh.ChannelOpenError(OPEN_ADMINISTRATIVELY_PROHIBITED, text)
        released = self._count_channel(is_session=False)
        return await Forwarder(self.tasks, self._attach_to(target), why).open(dial, released)

    def _attach_to(self, target: Target) -> Attach:
        """Attaches to a box; the connection keeps its place while it holds one."""

        @contextlib.asynccontextmanager
        async def attach(why: str, progress: Progress) -> AsyncIterator[Attachment]:
            async with target.attach(why, progress) as attachment:
                with self._hall.limits.holding_box(self._held_place):
                    yield attachment

        return attach

    def _lose_place(self) -> None:
        """Somebody else needs it more."""
        if self._auth.principal is None:
            self._conn.abort()
        else:
            text = "there are too many connections, and this one was idle"
            disconnect(self._conn, DISC_TOO_MANY_CONNECTIONS, text)

    def _count_channel(self, *, is_session: bool) -> Callable[[], None]:
        """Counts a channel; the result counts it out again, once. Raises ChannelOpenError."""
        if self._hall.draining:
            raise asyncssh.ChannelOpenError(OPEN_RESOURCE_SHORTAGE, "the service is stopping")
        if self._channels >= CHANNELS_PER_CONNECTION:
            raise asyncssh.ChannelOpenError(
                OPEN_RESOURCE_SHORTAGE,
                f"a connection carries at most {CHANNELS_PER_CONNECTION} channels",
            )
        owner = self._principal.owner
        if not self._hall.limits.open_channel(owner):
            raise asyncssh.ChannelOpenError(
                OPEN_RESOURCE_SHORTAGE, f"at most {CHANNELS_PER_OWNER} channels are open at once"
            )
        self._channels += 1
        self._sessions += is_session

        def released() -> None:
            if released in self._open:
                self._open.remove(released)
                self._channels -= 1
                self._sessions -= is_session
                self._hall.limits.close_channel(owner)
                self._hall.closed()

        self._open.add(released)
        self._hall.opened()
        return released

    # --- text ----------------------------------------------------------------------------

    async def _catalog(self, line: str | None, stdio: Stdio) -> Result:
        return Result(images_table(self._hall.operations.catalog.images()))

    async def _command(self, line: str | None, stdio: Stdio) -> Result:
        return await registry.execute(
            self._hall.console,
            line,
            principal=self._principal,
            operations=self._hall.operations,
            door=self._door(),
            now=self._hall.clock.now(),
            stdio=stdio,
        )

    async def _administer(self, line: str | None, stdio: Stdio) -> Result:
        return await run_audited(
            line,
            principal=self._principal,
            operations=self._hall.operations,
            door=self._door(),
            now=self._hall.clock.now(),
            stdio=stdio,
        )

    async def _help(self, line: str | None, stdio: Stdio) -> Result:
        return await self._command("help", stdio)

    def _door(self) -> Door:
        name = self._conn.get_extra_info("sockname")
        host, port = (str(name[0]), int(name[1])) if name else ("localhost", 22)
        if (shown := self._hall.shown_as) is not None:
            host, port = shown.host, shown.port or port
        hall = self._hall
        return Door(host, port, hall.fingerprint, hall.host_key, hall.preview_domain)

    @property
    def _held_place(self) -> Place:
        if self._place is None:
            raise RuntimeError("a connection that was not let in")
        return self._place

    @property
    def _principal(self) -> Principal:
        if self._auth.principal is None:
            raise RuntimeError("a channel before authentication")
        return self._auth.principal

    def _ending(self, exc: Exception | None) -> Ending:
        """How a connection ended that did not authenticate."""
        if self._auth.tries:
            return Ending.FAILED_AUTH
        if isinstance(exc, asyncssh.ProtocolError | asyncssh.MACError):
            return Ending.MALFORMED
        if isinstance(exc, asyncssh.ConnectionLost) and "timeout" in str(exc):
            return Ending.GRACE_EXCEEDED
        return Ending.NO_AUTH
