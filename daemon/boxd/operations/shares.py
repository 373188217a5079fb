"""Shares: links that give access to one box without a key of its owner.

The service stores only the SHA-256 of a share's token. Removing a box removes its shares.
"""

from __future__ import annotations

import asyncio
import re
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

from boxd.authz import Action, require
from boxd.boxes.state.requests import BoxAccess
from boxd.errors import Ambiguous, BadRequest, Confidential, InvalidShare, NotFound
from boxd.model.progress import SILENT
from boxd.model.share import Share, SharedBox
from boxd.names.words import SHARE_PREFIX, shown
from boxd.principal import Principal
from boxd.secret import Secret, digest, random_hex

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from datetime import datetime

    from boxd.boxes.lifecycle.holds import Attachment
    from boxd.boxes.limits.tier_limits import Tier
    from boxd.boxes.presence.attachments import Attachments
    from boxd.clock import Clock
    from boxd.model.progress import Progress
    from boxd.operations.boxes import BoxOperations
    from boxd.operations.shared.box_directory import BoxDirectory
    from boxd.operations.shared.callers import Callers
    from boxd.store.interface import ControlStore


_TOKEN = re.compile(SHARE_PREFIX + "[0-9a-f]{32}")
_ID_PREFIX = re.compile("[0-9a-f]{1,32}")
_CANDIDATES = 10


class ShareOperations:
    """Creates, lists and revokes shares, and attaches their holders.

    Critical section: `_adding` is held between counting an owner's shares and adding one.
    """

    def __init__(
        self,
        store: ControlStore,
        directory: BoxDirectory,
        boxes: BoxOperations,
        attachments: Attachments,
        callers: Callers,
        tier_of: Callable[[str], Tier],
        clock: Clock,
    ) -> None:
        self._store = store
        self._directory = directory
        self._boxes = boxes
        self._attachments = attachments
        self._callers = callers
        self._tier_of = tier_of
        self._clock = clock
        self._adding = asyncio.Lock()

    async def create_share(
        self, p: Principal, ref: str, ws: str | None = None, *, ttl: timedelta | None
    ) -> tuple[SharedBox, Secret]:
        """Create a share of a box, and delete the owner's expired shares.

        The Secret is the SSH user name of the holder; the service shows it once. `ttl` None: the
        share does not expire. Raises BadRequest, NotFound, Ambiguous, Confidential, QuotaExceeded.
        """
        require(p, Action.SHARE_BOX)
        if ttl is not None and ttl <= timedelta(0):
            raise BadRequest("the ttl of a share must be positive; for example --ttl 1d")
        box = await self._directory.resolve(p, ref, ws)
        if box.confidential:
            raise Confidential(
                f"box {box.ref} is confidential: only its owner's key opens it; use {box.relayed}"
            )
        async with self._adding:
            now = self._clock.now()
            self._tier_of(p.owner).check_shares(await self._live_shares(p.owner, now))
            secret = Secret(SHARE_PREFIX + random_hex(16))
            expires = None if ttl is None else now + ttl
            share = Share(random_hex(16), p.owner, box.id, now, expires, None)
            await self._store.add_share(share, digest(secret.reveal()))
        return SharedBox(share, box.ref), secret

    async def list_shares(
        self, p: Principal, ref: str | None = None, ws: str | None = None
    ) -> list[SharedBox]:
        """Return the shares of the owner, or of one box, oldest first."""
        require(p, Action.SHARE_BOX)
        only = None if ref is None else await self._directory.resolve(p, ref, ws)
        boxes = (
            {box.id: box for box in await self._directory.visible(p)}
            if only is None
            else {only.id: only}
        )
        return [
            SharedBox(share, boxes[share.box_id].ref)
            for share in await self._store.shares(p.owner)
            if share.box_id in boxes
        ]

    async def remove_share(self, p: Principal, share_id: str) -> SharedBox:
        """Revoke the share whose id starts with `share_id`, end its attachments, and return it.

        Raises NotFound or Ambiguous, or Unavailable if the database does not answer. The
        attachments have ended even then.
        """
        require(p, Action.SHARE_BOX)
        matches = [
            one
            for one in await self.list_shares(p)
            if _ID_PREFIX.fullmatch(share_id) and one.share.id.startswith(share_id)
        ]
        if not matches:
            raise NotFound(f"no share {shown(share_id)}; see: share ls")
        if len(matches) > 1:
            raise Ambiguous(f"{shown(share_id)} is ambiguous: {_candidates(matches)}")
        share = matches[0].share
        try:
            await self._store.remove_share(share.id)
        finally:
            self._attachments.end_key(share.id, "this share link was revoked")
        return matches[0]

    async def principal_of_share(self, token: Secret) -> Principal:
        """Return the principal of a share token. Raises the same InvalidShare for every failure."""
        text = token.reveal()
        if _TOKEN.fullmatch(text) is None:
            raise InvalidShare
        share = await self._store.find_share(digest(text))
        if share is None or _is_expired(share, self._clock.now()):
            raise InvalidShare
        if self._callers.access_policy.blocked_since(share.owner) is not None:
            raise InvalidShare
        self._callers.share_uses.touch(share.id)
        return Principal(
            share.owner, None, "share", share.id, box=share.box_id, expires=share.expires
        )

    @asynccontextmanager
    async def attach_shared(
        self,
        holder: Principal,
        *,
        why: str,
        progress: Progress = SILENT,
    ) -> AsyncIterator[Attachment]:
        """Attach to the box of a share, as `attach`. Raises InvalidShare if the box was removed."""
        async with AsyncExitStack() as stack:
            access = BoxAccess(holder.box or "", kind="reference", why=f"shared {why}")
            attaching = self._boxes.attach(holder, access, progress)
            try:
                attachment = await stack.enter_async_context(attaching)
            except NotFound:
                raise InvalidShare from None
            yield attachment

    async def _live_shares(self, owner: str, now: datetime) -> int:
        """Return the number of live shares of the owner; delete the expired ones."""
        live = 0
        for share in await self._store.shares(owner):
            if _is_expired(share, now):
                await self._store.remove_share(share.id)
            else:
                live += 1
        return live


def _is_expired(share: Share, now: datetime) -> bool:
    return share.expires is not None and share.expires <= now


def _candidates(shares: list[SharedBox]) -> str:
    listed = ", ".join(f"{one.share.id} of {one.ref}" for one in shares[:_CANDIDATES])
    more = f" and {len(shares) - _CANDIDATES} more" if len(shares) > _CANDIDATES else ""
    return listed + more
