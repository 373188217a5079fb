"""Browsers at a port of a box: what the cookie stands for that they show after their first visit.

Only the SHA-256 of a cookie is stored. A session goes with its box and with the key that made it.
"""

from __future__ import annotations

import re
from datetime import timedelta
from typing import TYPE_CHECKING

from boxd.authz import Action, require
from boxd.errors import Ambiguous, BadName, Forbidden, InvalidKey, NotFound, NothingListening
from boxd.model.proxy import ProxySession
from boxd.operations.boxes import BoxOperations
from boxd.principal import Principal
from boxd.secret import Secret, digest, random_hex, random_word

if TYPE_CHECKING:
    from boxd.boxes.lifecycle import Attachment
    from boxd.model.box import Box
    from boxd.tunnel.stream import ByteStream

SESSION_TIME = timedelta(hours=1)
"""Counted from the first visit; later ones do not prolong it."""
MAX_SESSIONS = 1000
"""Of one owner; the oldest ones make room."""
_COOKIE = re.compile(r"[A-Za-z0-9_-]{43}")


class ProxyOperations(BoxOperations):
    """See the module."""

    async def open_proxy_session(
        self, p: Principal, box: Box, port: int, host: str | None
    ) -> Secret:
        """Lets a browser that showed an API key come back without it; the Secret is the cookie.

        It opens one port of one box, by the API's path or (`host`) by one preview host. InvalidKey
        or NotFound when the key or the box has gone meanwhile.
        """
        require(p, Action.ATTACH_BOX)
        if p.via != "api_key" or p.key_id is None:
            raise Forbidden("only an API key opens a session of a browser")
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
        """Connects to a port of a box that is held, as seen from inside. NothingListening,
        DialTimeout, Unavailable; the caller closes it."""
        try:
            return await self._lifecycle.dial(attachment, port)
        except NothingListening as error:
            raise NothingListening(
                f"nothing listens at port {port} of box {attachment.box.ref} ({error}); start the"
                " program there, on 127.0.0.1 or all addresses, and ask again"
            ) from None

    async def opened_by_cookie(
        self, presented: str, ref: str, port: int, host: str | None
    ) -> tuple[Principal, Box]:
        """Whom a cookie stands for at the port of the box that a reference means, and that box.

        Whatever is wrong with it, or with the place where it is shown, is the same InvalidKey;
        Forbidden for one that is good, and its owner blocked.
        """
        if _COOKIE.fullmatch(presented) is None:
            presented = ""  # Looked up too: no answer may come sooner than that to an unknown one.
        session = await self._store.find_proxy_session(digest(presented))
        if session is None or session.expires <= self._clock.now():
            raise InvalidKey
        if (session.port, session.host) != (port, host):
            raise InvalidKey
        p = Principal(
            *(session.owner, session.scope, "cookie", session.key_id),
            box=session.box_id,
            expires=session.expires,
        )
        try:
            box = await self.resolve(p, ref)
        except (Ambiguous, BadName, Forbidden, NotFound):
            raise InvalidKey from None
        self._gate.check_owner(p.owner)
        self._key_uses.touch(session.key_id)
        self.seen(p)
        return p, box
