"""Canvases: documents that programs render for users. Each scope has its own.

A credential with a workspace scope renders, reads and removes the canvases of that scope. Any other
credential does so for the canvases of the account. With `ws` it can also read and remove canvases
of a workspace, but cannot render there.
"""

from __future__ import annotations

import asyncio
import json
import re
from datetime import timedelta
from typing import TYPE_CHECKING, get_args

from boxd.authz import Action, checked_workspace, require
from boxd.errors import BadName, BadRequest, NotFound, QuotaExceeded, TooLarge
from boxd.model.canvas import Canvas, Mime
from boxd.model.end import End
from boxd.names.words import shown

if TYPE_CHECKING:
    from boxd.boxes.state.expiry_notifier import ExpiryNotifier
    from boxd.boxes.state.feed import Feed
    from boxd.clock import Clock
    from boxd.principal import Principal
    from boxd.store.interface import ControlStore

MAX_CANVASES = 100
"""Maximum number of canvases of one scope."""
MAX_CONTENT = 256 * 1024
"""Maximum size of the content of one canvas, in bytes."""
MAX_TITLE = 200
"""Maximum length of a title, in characters."""
LONGEST_TTL = timedelta(days=365)
_ID = re.compile(r"[a-z0-9-]{1,64}")


class CanvasOperations:
    """Renders, lists, reads and removes canvases.

    Critical section: `_adding` is held between counting the canvases of a scope and adding one.
    """

    def __init__(
        self, store: ControlStore, feed: Feed, expiry_notifier: ExpiryNotifier, clock: Clock
    ) -> None:
        self._store = store
        self._feed = feed
        self._expiry_notifier = expiry_notifier
        self._clock = clock
        self._adding = asyncio.Lock()

    async def render_canvas(
        self,
        p: Principal,
        canvas_id: str,
        content: str,
        *,
        mime: str = "text/markdown",
        title: str = "",
        ttl: timedelta | None = None,
    ) -> Canvas:
        """Record a document in the caller's scope; it replaces an older one of the same id.

        The canvas expires after `ttl`; None: never. Raises BadName, BadRequest, TooLarge,
        QuotaExceeded.
        """
        require(p, Action.RENDER_CANVAS)
        _check_id(canvas_id)
        kind = _mime(mime)
        size = _size(content, kind)
        if len(title) > MAX_TITLE or not title.isprintable():
            raise BadRequest(f"a title must have at most {MAX_TITLE} printable characters")
        if ttl is not None and not timedelta(0) < ttl <= LONGEST_TTL:
            raise BadRequest(f"the ttl of a canvas must be 1 s to {LONGEST_TTL.days} days")
        async with self._adding:
            now = self._clock.now()
            await self._store.remove_canvases(now)
            others = {one.id: one for one in await self._store.canvases(p.owner, p.scope)}
            older = others.pop(canvas_id, None)
            if len(others) >= MAX_CANVASES:
                raise QuotaExceeded(
                    f"limit reached: {MAX_CANVASES} canvases; remove one, or replace one by its id"
                )
            canvas = Canvas(
                owner=p.owner,
                scope=p.scope,
                id=canvas_id,
                title=title,
                mime=kind,
                size=size,
                revision=older.revision + 1 if older else 1,
                updated=now,
                expires=None if ttl is None else now + ttl,
            )
            await self._store.put_canvas(canvas, content)
        if canvas.expires is None:
            self._expiry_notifier.drop("canvas", p.owner, p.scope, canvas_id)
        else:
            self._expiry_notifier.put(End("canvas", p.owner, p.scope, canvas_id, canvas.expires))
        self._feed.canvas(p.owner, p.scope, canvas_id)
        return canvas

    async def list_canvases(self, p: Principal, ws: str | None = None) -> list[Canvas]:
        """Return the canvases of the caller's scope, or of a workspace, by id."""
        require(p, Action.READ_CANVAS)
        now = self._clock.now()
        stored = await self._store.canvases(p.owner, checked_workspace(p, ws))
        return [one for one in stored if one.lives(now)]

    async def read_canvas(
        self, p: Principal, canvas_id: str, ws: str | None = None
    ) -> tuple[Canvas, str]:
        """Return a canvas and its content. Raises NotFound."""
        require(p, Action.READ_CANVAS)
        scope = checked_workspace(p, ws)
        if _ID.fullmatch(canvas_id) is not None:
            stored = await self._store.canvas(p.owner, scope, canvas_id)
            if stored is not None and stored[0].lives(self._clock.now()):
                return stored
        raise NotFound(f"no canvas {shown(canvas_id)}")

    async def remove_canvas(self, p: Principal, canvas_id: str, ws: str | None = None) -> Canvas:
        """Remove a canvas and return it. Raises NotFound."""
        require(p, Action.RENDER_CANVAS)
        canvas, _ = await self.read_canvas(p, canvas_id, ws)
        await self._store.remove_canvas(p.owner, canvas.scope, canvas_id)
        self._expiry_notifier.drop("canvas", p.owner, canvas.scope, canvas_id)
        self._feed.canvas(p.owner, canvas.scope, canvas_id)
        return canvas


def _check_id(canvas_id: str) -> None:
    if _ID.fullmatch(canvas_id) is None:
        raise BadName(f"{shown(canvas_id)} is not a canvas id: use 1 to 64 of a-z, 0-9 and '-'")


def _mime(text: str) -> Mime:
    mimes: dict[str, Mime] = {one: one for one in get_args(Mime)}
    if text not in mimes:
        raise BadRequest(f"unknown canvas type {shown(text)}; known: {', '.join(mimes)}")
    return mimes[text]


def _size(content: str, kind: Mime) -> int:
    """Return the size of valid content in bytes. Raises BadRequest, TooLarge."""
    try:
        size = len(content.encode("utf-8"))
    except UnicodeEncodeError:
        raise BadRequest(
            "the content is not valid Unicode: it contains an unpaired surrogate"
        ) from None
    if size > MAX_CONTENT:
        raise TooLarge(f"the content has {size} bytes; a canvas has at most {MAX_CONTENT}")
    if "\0" in content:
        raise BadRequest("the content contains a NUL character")
    if kind == "application/json":
        try:
            json.loads(content)
        except (ValueError, RecursionError) as error:
            raise BadRequest(f"the content is not valid JSON: {error}") from None
    return size
