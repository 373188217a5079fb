"""Shares: links to one box for people who have no key of its owner, and whom one stands for.

Only the SHA-256 of a share's token is stored. A share goes with its box.
"""

from __future__ import annotations

import re
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from boxd.authz import Action, require
from boxd.errors import Ambiguous, BadRequest, Confidential, InvalidShare, NotFound
from boxd.model.share import Share
from boxd.names.words import SHARE_PREFIX, shown
from boxd.operations.boxes import BoxOperations
from boxd.principal import Principal
from boxd.secret import Secret, digest, random_hex

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from datetime import datetime

    from boxd.boxes.lifecycle import Attachment


_TOKEN = re.compile(SHARE_PREFIX + "[0-9a-f]{32}")
_ID_PREFIX = re.compile("[0-9a-f]{1,32}")
_CANDIDATES = 10


@dataclass(frozen=True, slots=True)
class SharedBox:
    """A share, and what its box is called now."""

    share: Share
    ref: str


class ShareOperations(BoxOperations):
    """See the module."""

    async def create_share(
        self, p: Principal, ref: str, ws: str | None = None, *, ttl: timedelta | None
    ) -> tuple[SharedBox, Secret]:
        """Makes a share of a box; the Secret, the user name to connect as, is seen only now.

        NotFound, Ambiguous, Confidential, QuotaExceeded. Shares of the owner
        that have expired are forgotten.
        """
        require(p, Action.SHARE_BOX)
        if ttl is not None and ttl <= timedelta(0):
            raise BadRequest("the ttl of a share must be positive; for example --ttl 1d")
        box = await self.resolve(p, ref, ws)
        if box.confidential:
            raise Confidential(
                f"box {box.ref} is confidential: only its owner's key opens it; use {box.relayed}"
            )
        async with self._minting:
            now = self._clock.now()
            self._tier_of(p.owner).check_shares(await self._living_shares(p.owner, now))
            secret = Secret(SHARE_PREFIX + random_hex(16))
            expires = None if ttl is None else now + ttl
            share = Share(random_hex(16), p.owner, box.id, now, expires, None)
            await self._store.add_share(share, digest(secret.reveal()))
        return SharedBox(share, box.ref), secret

    async def list_shares(
        self, p: Principal, ref: str | None = None, ws: str | None = None
    ) -> list[SharedBox]:
        """The shares of the owner, or of one box, oldest first."""
        require(p, Action.SHARE_BOX)
        only = None if ref is None else await self.resolve(p, ref, ws)
        boxes = {box.id: box for box in await self._visible(p)} if only is None else {only.id: only}
        return [
            SharedBox(share, boxes[share.box_id].ref)
            for share in await self._store.shares(p.owner)
            if share.box_id in boxes
        ]

    async def remove_share(self, p: Principal, share_id: str) -> SharedBox:
        """Revokes the share whose id begins so, and ends what it holds open; returns what it was.

        NotFound, Ambiguous. Unavailable when the database does not answer; what the share holds
        open has ended then too.
        """
        require(p, Action.SHARE_BOX)
        found = [
            one
            for one in await self.list_shares(p)
            if _ID_PREFIX.fullmatch(share_id) and one.share.id.startswith(share_id)
        ]
        if not found:
            raise NotFound(f"no share {shown(share_id)}; see: share ls")
        if len(found) > 1:
            raise Ambiguous(f"{shown(share_id)} is ambiguous: {_candidates(found)}")
        share = found[0].share
        try:
            await self._store.remove_share(share.id)
        finally:
            self._lifecycle.attachments.end_key(share.id, "this share link was revoked")
        return found[0]

    async def principal_of_share(self, token: Secret) -> Principal:
        """Whom the holder of a token stands for. Every failure is the same InvalidShare."""
        text = token.reveal()
        if _TOKEN.fullmatch(text) is None:
            raise InvalidShare
        share = await self._store.find_share(digest(text))
        if share is None or _is_over(share, self._clock.now()):
            raise InvalidShare
        if self._gate.blocked_since(share.owner) is not None:
            raise InvalidShare
        self._share_uses.touch(share.id)
        return Principal(
            *(share.owner, None, "share", share.id), box=share.box_id, expires=share.expires
        )

    @asynccontextmanager
    async def attach_shared(
        self,
        holder: Principal,
        *,
        why: str,
        notes: Callable[[str], None] | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> AsyncIterator[Attachment]:
        """Holds the box of a share; as `attach`, but InvalidShare when the box is gone."""
        async with AsyncExitStack() as stack:
            held = self.attach(
                *(holder, holder.box or ""),
                kind="reference",
                why=f"shared {why}",
                notes=notes,
                progress=progress,
            )
            try:
                attachment = await stack.enter_async_context(held)
            except NotFound:
                raise InvalidShare from None
            yield attachment

    async def _living_shares(self, owner: str, now: datetime) -> int:
        """How many the owner has; forgets those that are over."""
        living = 0
        for share in await self._store.shares(owner):
            if _is_over(share, now):
                await self._store.remove_share(share.id)
            else:
                living += 1
        return living


def _is_over(share: Share, now: datetime) -> bool:
    return share.expires is not None and share.expires <= now


def _candidates(found: list[SharedBox]) -> str:
    listed = ", ".join(f"{one.share.id} of {one.ref}" for one in found[:_CANDIDATES])
    more = f" and {len(found) - _CANDIDATES} more" if len(found) > _CANDIDATES else ""
    return listed + more
