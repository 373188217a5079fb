"""Protocol adapter only. One connection of the SSH listener, from its first byte to its last.

The daemon creates, wakes or looks up no box before the client has proved its key.
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
from boxd.observation import Event, Work
from boxd.ssh.admin.console import run_audited
from boxd.ssh.cli import registry
from boxd.ssh.cli.command import Endpoint, Result
from boxd.ssh.cli.verbs.service.catalog import images_table
from boxd.ssh.connection.agent_forward import refuse_agent_forwarding
from boxd.ssh.connection.auth import Authentication
from boxd.ssh.connection.env_limits import EnvironmentLimits
from boxd.ssh.connection.forward import Dial, ForwardEnd, Forwarder, port_dialer, socket_dialer
from boxd.ssh.connection.jump import NO_SESSIONS, JumpTargets, dial_relay
from boxd.ssh.connection.limits import CHANNELS_PER_OWNER, Penalty, Slot
from boxd.ssh.connection.message_limits import MessageLimits
from boxd.ssh.connection.relay import RelaySession
from boxd.ssh.connection.router import (
    AdminRoute,
    BoxRoute,
    InvalidRoute,
    JumpRoute,
    Route,
    ShareRoute,
    TextRoute,
    route,
)
from boxd.ssh.connection.share_target import ShareTarget
from boxd.ssh.connection.target import BoxTarget
from boxd.ssh.connection.text_session import RefusalSession, TextSession
from boxd.tasks import BackgroundTasks

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from boxd.boxes.lifecycle.holds import Attachment
    from boxd.model.progress import Progress
    from boxd.principal import Principal
    from boxd.ssh.cli.command import Stdio
    from boxd.ssh.connection.listener_state import ListenerState
    from boxd.ssh.connection.session import Session
    from boxd.ssh.connection.target import Attach, Target

SESSIONS_PER_CONNECTION = 10
CHANNELS_PER_CONNECTION = 64
_STOPPING = "the service is stopping; connect again in a moment"
"""The reason that clients print when the listener closes."""

_FAILURES = {
    Penalty.FAILED_AUTH: Event.SSH_AUTH_FAILED,
    Penalty.NO_AUTH: Event.SSH_NO_AUTH,
    Penalty.MALFORMED: Event.SSH_MALFORMED,
    Penalty.GRACE_EXCEEDED: Event.SSH_GRACE_EXCEEDED,
}
_log = logging.getLogger(__name__)


class ServerConnection(asyncssh.SSHServer):
    """One connection of a listener."""

    def __init__(self, listener: ListenerState) -> None:
        self.tasks = BackgroundTasks()
        self._listener = listener
        self._observer = listener.operations.observer
        self._auth = Authentication(listener.settings.administrators)
        self._slot: Slot | None = None
        self._close_callbacks: set[Callable[[], None]] = set()
        self._sessions = 0
        self._channels = 0
        self._route: Route | None = None
        self._target: Target | None = None
        self._jump_targets: JumpTargets[Target] | None = None
        self._address = ""
        self._conn: asyncssh.SSHServerConnection
        self._message_limits: MessageLimits

    # --- before authentication -----------------------------------------------------------

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        """Admit the connection, or drop it before the key exchange."""
        self._conn = conn
        peer = conn.get_extra_info("peername")
        self._address = address = str(peer[0]) if peer else ""
        if not self._listener.draining:
            self._slot = self._listener.limits.admit(address, self._make_room)
        if self._slot is not None:
            self._observer.event(Event.SSH_CONNECTION)
            self._message_limits = MessageLimits(conn)
            Backpressure(conn)
            send_no_padding(conn)
            self._listener.connections.add(self)
        else:
            self._observer.event(Event.SSH_LIMITED)
            _log.debug("connection from %s dropped by a limit", address)
            conn.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """End all work of the connection."""
        self.tasks.cancel()
        self._listener.connections.discard(self)
        for callback in list(self._close_callbacks):
            callback()  # asyncssh does not report the end to a channel that is still opening
        if self._slot is not None:
            penalty = self._penalty(exc)
            if self._auth.principal is None:
                self._observer.event(_FAILURES[penalty])
            self._listener.limits.release(self._slot, penalty)

    def begin_auth(self, username: str) -> bool:
        """Require authentication for every user name."""
        return True

    def public_key_auth_supported(self) -> bool:
        """Offer public key authentication, the only method."""
        return True

    def validate_public_key(self, username: str, key: asyncssh.SSHKey) -> bool:
        """Return whether the client may use the key, which it has not proved yet."""
        is_accepted = self._auth.offer(username, key)
        if self._auth.exhausted:
            text = "too many authentication failures"
            disconnect(self._conn, DISC_NO_MORE_AUTH_METHODS_AVAILABLE, text)
            return False
        return is_accepted

    def auth_completed(self) -> None:
        """Bind the connection to the owner of the proved key and to the user name."""
        principal = self._auth.complete()
        self._message_limits.authenticated = True
        if refusal := self._listener.limits.authenticate(self._admitted_slot, principal.owner):
            disconnect(self._conn, DISC_TOO_MANY_CONNECTIONS, refusal)
            return
        self._listener.operations.callers.came(principal, self._address)
        self._listener.operations.callers.seen(principal)
        flavors = frozenset(flavor.name for flavor in self._listener.operations.catalog.flavors())
        self._route = route(self._auth.username, flavors)
        self._target = self._target_of(self._route, principal)
        if self._target is not None and not self._target.forwards_agent:
            refuse_agent_forwarding(self._conn)
        if isinstance(self._route, JumpRoute):
            self._jump_targets = JumpTargets(flavors, self._jump_target_factory(principal))

    def _target_of(self, user_route: Route, principal: Principal) -> Target | None:
        operations = self._listener.operations
        match user_route:
            case BoxRoute():
                return BoxTarget(operations, principal, user_route, self._endpoint())
            case ShareRoute(token):
                return ShareTarget(operations, token, self._listener.limits)
            case _:
                return None

    def _jump_target_factory(self, principal: Principal) -> Callable[[BoxRoute], Target]:
        """Return a function that creates the targets of user `jump`."""
        operations, endpoint = self._listener.operations, self._endpoint()
        public_key = self._auth.public_key
        return lambda box_route: BoxTarget(operations, principal, box_route, endpoint, public_key)

    # --- channels ------------------------------------------------------------------------

    def session_requested(self) -> tuple[asyncssh.SSHServerChannel[bytes], Session]:
        """Open a session channel, which the box or the daemon answers."""
        chan = self._conn.create_server_channel()
        EnvironmentLimits(chan)
        take_any_command(chan)
        # asyncssh awaits the coroutine in a later step of the loop. By then, channels that the
        # client closed before this request are uncounted, even if all messages arrived at once.
        return chan, cast("Session", self._session(chan))

    async def _session(self, chan: asyncssh.SSHServerChannel[bytes]) -> Session:
        session = self._new_session(chan)
        session.observer = self._observer
        return session

    def _new_session(self, chan: asyncssh.SSHServerChannel[bytes]) -> Session:
        if self._sessions >= SESSIONS_PER_CONNECTION:
            raise asyncssh.ChannelOpenError(
                OPEN_RESOURCE_SHORTAGE,
                f"at most {SESSIONS_PER_CONNECTION} sessions of one connection are open at once",
            )
        on_closed = self._count_channel(is_session=True)
        if (error := self._access_error()) is not None:
            return RefusalSession(self.tasks, on_closed, error)
        if self._target is not None:
            relay = RelaySession(self.tasks, on_closed, self._attach_to(self._target))
            on_end_of_writing(chan, relay.stop_stdout)
            return relay
        return self._text_session(on_closed)

    def _text_session(self, on_closed: Callable[[], None]) -> Session:
        if isinstance(self._route, TextRoute):
            answers = {"images": self._show_images, "cli": self._run_cli, "help": self._show_help}
            return TextSession(self.tasks, on_closed, answers[self._route.topic])
        if isinstance(self._route, AdminRoute):
            return TextSession(self.tasks, on_closed, self._run_admin_command)
        return RefusalSession(self.tasks, on_closed, self._route_error())

    def _access_error(self) -> BoxdError | None:
        """Return why the owner has no access now; each channel checks again."""
        if isinstance(self._route, AdminRoute):
            if self._principal.owner in self._listener.settings.administrators:
                return None
            return Forbidden("this key no longer has administrator access")
        try:
            self._listener.operations.callers.check_admitted(self._principal)
        except BoxdError as error:
            return error
        return None

    def _route_error(self) -> BoxdError:
        """Return why the user name does not lead to a box."""
        match self._route:
            case InvalidRoute(error):
                return error
            case JumpRoute():
                return Unsupported(self._endpoint().with_jump_host(NO_SESSIONS))
            case _:
                return Unsupported("this user name has no box to forward to")

    async def connection_requested(
        self, dest_host: str, dest_port: int, orig_host: str, orig_port: int
    ) -> ForwardEnd:
        """Forward a TCP connection (`-L`, `-W`, `-D`), or one to a box's SSH server (`-J`)."""
        if self._jump_targets is not None:
            return await self._forward(dial_relay, self._jump_targets.target(dest_host), "relay")
        return await self._forward(port_dialer(dest_host, dest_port), self._target)

    async def unix_connection_requested(self, dest_path: str) -> ForwardEnd:
        """Forward a connection to a Unix socket of the box (`-L`)."""
        return await self._forward(socket_dialer(dest_path), self._target)

    async def close(self) -> None:
        """End the connection, give the client the reason, and wait for its tasks."""
        disconnect(self._conn, DISC_BY_APPLICATION, _STOPPING)
        await self.tasks.close()
        await self._conn.wait_closed()

    async def _forward(self, dial: Dial, target: Target | None, why: str = "forward") -> ForwardEnd:
        if (error := self._access_error()) is not None or target is None:
            text = escaped(str(error or self._route_error()))
            raise asyncssh.ChannelOpenError(OPEN_ADMINISTRATIVELY_PROHIBITED, text)
        on_closed = self._count_channel(is_session=False)
        with self._observer.work(Work.SSH_CHANNEL, why):
            return await Forwarder(self.tasks, self._attach_to(target), why).open(dial, on_closed)

    def _attach_to(self, target: Target) -> Attach:
        """Return the function that attaches to a box and counts the box for the connection."""

        @contextlib.asynccontextmanager
        async def attach(why: str, progress: Progress) -> AsyncIterator[Attachment]:
            async with target.attach(why, progress) as attachment:
                with self._listener.limits.holding_box(self._admitted_slot):
                    yield attachment

        return attach

    def _make_room(self) -> None:
        """End this connection, because a newer one needs its slot."""
        if self._auth.principal is None:
            self._conn.abort()
        else:
            text = "too many connections are open, and this one was idle"
            disconnect(self._conn, DISC_TOO_MANY_CONNECTIONS, text)

    def _count_channel(self, *, is_session: bool) -> Callable[[], None]:
        """Count a new channel. Raises ChannelOpenError if that is too many.

        Returns a function that uncounts it; a second call has no effect.
        """
        if self._listener.draining:
            raise asyncssh.ChannelOpenError(OPEN_RESOURCE_SHORTAGE, "the service is stopping")
        if self._channels >= CHANNELS_PER_CONNECTION:
            raise asyncssh.ChannelOpenError(
                OPEN_RESOURCE_SHORTAGE,
                f"at most {CHANNELS_PER_CONNECTION} channels of one connection are open at once",
            )
        owner = self._principal.owner
        if not self._listener.limits.open_channel(owner):
            raise asyncssh.ChannelOpenError(
                OPEN_RESOURCE_SHORTAGE,
                f"at most {CHANNELS_PER_OWNER} channels of one key are open at once",
            )
        self._channels += 1
        self._sessions += is_session

        def uncount() -> None:
            if uncount in self._close_callbacks:
                self._close_callbacks.remove(uncount)
                self._channels -= 1
                self._sessions -= is_session
                self._listener.limits.close_channel(owner)
                self._listener.channel_closed()

        self._close_callbacks.add(uncount)
        self._listener.channel_opened()
        return uncount

    # --- text sessions -------------------------------------------------------------------

    async def _show_images(self, line: str | None, stdio: Stdio) -> Result:
        return Result(images_table(self._listener.operations.catalog.images()))

    async def _run_cli(self, line: str | None, stdio: Stdio) -> Result:
        return await registry.execute(
            self._listener.settings.console,
            line,
            principal=self._principal,
            operations=self._listener.operations,
            endpoint=self._endpoint(),
            now=self._listener.clock.now(),
            stdio=stdio,
        )

    async def _run_admin_command(self, line: str | None, stdio: Stdio) -> Result:
        return await run_audited(
            line,
            principal=self._principal,
            operations=self._listener.operations,
            endpoint=self._endpoint(),
            now=self._listener.clock.now(),
            stdio=stdio,
        )

    async def _show_help(self, line: str | None, stdio: Stdio) -> Result:
        return await self._run_cli("help", stdio)

    def _endpoint(self) -> Endpoint:
        """Return the address for texts: the public one, or the one that the client reached."""
        listener, settings = self._listener, self._listener.settings
        name = self._conn.get_extra_info("sockname")
        host, port = (str(name[0]), int(name[1])) if name else ("localhost", 22)
        if (public := settings.public_address) is not None:
            host, port = public.host, public.port or port
        return Endpoint(
            host, port, listener.fingerprint, listener.host_key, settings.preview_authority
        )

    @property
    def _admitted_slot(self) -> Slot:
        if self._slot is None:
            raise RuntimeError("the connection was not admitted")
        return self._slot

    @property
    def _principal(self) -> Principal:
        if self._auth.principal is None:
            raise RuntimeError("a channel before authentication")
        return self._auth.principal

    def _penalty(self, exc: Exception | None) -> Penalty:
        """Return the penalty of a connection that ended before it authenticated."""
        if self._auth.attempts:
            return Penalty.FAILED_AUTH
        if isinstance(exc, asyncssh.ProtocolError | asyncssh.MACError):
            return Penalty.MALFORMED
        if isinstance(exc, asyncssh.ConnectionLost) and "timeout" in str(exc):
            return Penalty.GRACE_EXCEEDED
        return Penalty.NO_AUTH
