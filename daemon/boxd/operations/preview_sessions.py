"""Sessions of browsers at a port of a box: a cookie replaces the API key after the first request.

The service stores only the SHA-256 of a cookie. Removing the box or the key removes the session.
"""

from __future__ import annotations

import re
from datetime import timedelta
from typing import TYPE_CHECKING

from boxd.authz import Action, require
from boxd.errors import Ambiguous, BadName, Forbidden, InvalidKey, NotFound, NothingListening
from boxd.model.access.proxy import ProxySession
from boxd.principal import Principal
from boxd.secret import Secret, digest, random_hex, random_word

if TYPE_CHECKING:
    from boxd.boxes.lifecycle.holds import Attachment
    from boxd.boxes.lifecycle.lifecycle import Lifecycle
    from boxd.clock import Clock
    from boxd.model.box import Box
    from boxd.operations.shared.box_directory import BoxDirectory
    from boxd.operations.shared.callers import Callers
    from boxd.store.interface import ControlStore
    from boxd.tunnel.stream import ByteStream

SESSION_TIME = timedelta(hours=1)
"""The lifetime of a session and of its cookie, from the first request; later requests do not extend
it."""
MAX_SESSIONS = 1000
"""Maximum number of sessions of one owner. A new session replaces the oldest."""
_COOKIE = re.compile(r"[A-Za-z0-9_-]{43}")


class PreviewSessionOperations:
    """Opens sessions of browsers, authenticates their cookies and dials ports. Holds no state."""

    def __init__(
        self,
        store: ControlStore,
        directory: BoxDirectory,
        lifecycle: Lifecycle,
        callers: Callers,
        clock: Clock,
    ) -> None:
        self._store = store
        self._directory = directory
        self._lifecycle = lifecycle
        self._callers = callers
        self._clock = clock

    async def open_proxy_session(
        self, p: Principal, box: Box, port: int, host: str | None
    ) -> Secret:
        """Open a session for a browser that presented an API key; return its cookie.

        The cookie opens one port of one box, through the API's path or through one preview host
        (`host`). Raises Forbidden without an API key; InvalidKey or NotFound if the key or the box
        has been removed.
        """
        require(p, Action.ATTACH_BOX)
        if p.via != "api_key" or p.key_id is None:
            raise Forbidden("only an API key can open a browser session")
        now = self._clock.now()
        expires = now + SESSION_TIME
        if p.expires is not None:
            expires = min(expires, p.expires)
        secret = Secret(random_word(32))
        session = ProxySession(
            random_hex(16), p.owner, p.scope, p.key_id, box.id, port, host, now, expires
        )
        await self._store.add_proxy_session(session, digest(secret.reveal()))
        await self._store.trim_proxy_sessions(p.owner, now, MAX_SESSIONS)
        return secret

    async def dial(self, attachment: Attachment, port: int) -> ByteStream:
        """Connect to a port of an attached box from inside the box; the caller closes the stream.

        Raises NothingListening, DialTimeout, Unavailable.
        """
        try:
            return await self._lifecycle.dial(attachment, port)
        except NothingListening as error:
            raise NothingListening(
                f"nothing listens at port {port} of box {attachment.box.ref} ({error}); start the"
                " program there, on 127.0.0.1 or all addresses, and try again"
            ) from None

    async def opened_by_cookie(
        self, presented: str, ref: str, port: int, host: str | None
    ) -> tuple[Principal, Box]:
        """Return the principal of a cookie at a port of a box, and the box that `ref` means.

        Raises the same InvalidKey for every failure, even for a valid cookie at another port, box
        or host. Raises Forbidden for a valid cookie of a blocked owner.
        """
        if _COOKIE.fullmatch(presented) is None:
            presented = ""  # The lookup takes the same time as for an unknown cookie.
        session = await self._store.find_proxy_session(digest(presented))
        if session is None or session.expires <= self._clock.now():
            raise InvalidKey
        if (session.port, session.host) != (port, host):
            raise InvalidKey
        p = Principal(
            session.owner,
            session.scope,
            "cookie",
            session.key_id,
            box=session.box_id,
            expires=session.expires,
        )
        try:
            box = await self._directory.resolve(p, ref)
        except (Ambiguous, BadName, Forbidden, NotFound):
            raise InvalidKey from None
        self._callers.check_admitted(p)
        self._callers.key_uses.touch(session.key_id)
        self._callers.seen(p)
        return p, box
