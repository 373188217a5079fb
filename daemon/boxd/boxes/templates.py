"""Boxes that were made to be copied: a new box goes on from the memory of one that has just booted.

A template is a snapshot without an owner, of a box without a row whose agent has said hello and let
its tunnel go. It is made behind the first box that had to boot for want of one. A copy gets a host
key, a name and an address of its own, and its agent takes them up, with fresh randomness, before it
says hello. Whatever goes wrong with a copy is no error: the box boots, and the template is dropped.

A template is as good as what it was made of: image, guest runtime, size. These are its key, so that
one of an older image is never asked for; it goes when there are too many, or its image is gone.
Which there are is a setting, written when the host holds the template whole.

Critical section: `_making` lets one template be made at a time. `_known` changes between awaits.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from boxd.errors import BoxdError
from boxd.secret import random_hex

if TYPE_CHECKING:
    from collections.abc import Collection

    from boxd.boxes.parts import Parts
    from boxd.model.box import Box

MOST = 8
"""Templates that are kept; the oldest goes first."""
SETTING = "templates"
_NAME = "template"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Template:
    """`id` is that of the snapshot on the host, `root` the unpacked image it was made of."""

    key: str
    id: str
    root: str


class Templates:
    """See the module. `on`: templates are made and used at all."""

    def __init__(self, parts: Parts, *, on: bool) -> None:
        self._on = on
        self._store = parts.store
        self._assembly = parts.assembly
        self._timers = parts.timers
        self._known: dict[str, Template] = {}
        self._refused: set[str] = set()
        self._making = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> Collection[str]:
        """Remembers those of earlier daemons; returns their ids on the host. Unavailable."""
        text = await self._store.setting(SETTING)
        told = [Template(**raw) for raw in json.loads(text or "[]")]
        if self._on:
            self._known = await asyncio.to_thread(_usable, told)
        return [one.id for one in self._known.values()]

    async def close(self) -> None:
        """Breaks off what is being made, and removes what there is of it."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def find(self, box: Box) -> str | None:
        """What a new box can be copied from; None: it has to boot."""
        template = self._known.get(self._key(box)) if self._able() else None
        return None if template is None else template.id

    def wanted(self, box: Box) -> None:
        """A box like this one had to boot: the next one shall find a template."""
        key = self._key(box) if self._able() else None
        if key is None or key in self._known or key in self._refused:
            return
        self._spawn(key, box)

    async def lost(self, box: Box) -> None:
        """Copying one for this box failed: it is dropped, and made anew when it is wanted."""
        template = self._known.pop(self._key(box), None)
        if template is not None:
            await self._forget(template)

    def _able(self) -> bool:
        return self._on and self._assembly.backend.capabilities().fork

    def _key(self, box: Box) -> str:
        """What the memory and the layer of a fresh box depend on."""
        root = self._assembly.root(box.image)
        facts = (str(root and root.resolve()), box.image, self._assembly.runtime, box.mem_mb)
        return hashlib.sha256(repr(facts).encode()).hexdigest()

    def _spawn(self, key: str, box: Box) -> None:
        task = asyncio.create_task(self._make(key, box), name=f"template of {box.image}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _make(self, key: str, like: Box) -> None:
        async with self._making:
            if key in self._known or key in self._refused:
                return
            root = self._assembly.root(like.image)
            template = Template(key, random_hex(16), str(root and root.resolve()))
            try:
                await self._boot_and_keep(like, template)
                await self._remember(template)
            except (BoxdError, OSError, ExceptionGroup) as error:
                # Not tried again by this daemon: what boots boxes works, if slower.
                self._refused.add(key)
                _log.warning("no template of image %s: %s", like.image, error)
                await self._drop(template)
            else:
                _log.info("template of image %s made", like.image)

    async def _boot_and_keep(self, like: Box, template: Template) -> None:
        """Boots a box without owner or row, and keeps it as it is. Nothing of the box is left, or
        the timer removes what is."""
        private_key, host_key = self._assembly.new_identity()
        box = replace(
            like,
            id=random_hex(16),
            owner="",
            workspace=None,
            name=_NAME,
            host_key=host_key,
            drive=False,
            egress="none",
        )
        backend = self._assembly.backend
        try:
            await self._assembly.build(box, private_key)
            await self._assembly.start(box)
            await self._assembly.tunnels.quiesce(box.id)
            await backend.freeze(box.id)
            await backend.snapshot(box.id, template.id)
        finally:
            try:
                await self._assembly.destroy(box)
            except BoxdError as error:
                self._timers.doom(box, error)

    async def _remember(self, template: Template) -> None:
        """In the place of the oldest ones, and of those whose image is gone."""
        known = await asyncio.to_thread(_usable, [*self._known.values(), template])
        for key in list(known)[:-MOST]:
            del known[key]
        dropped = [one for key, one in self._known.items() if key not in known]
        await self._write(known)
        self._known = known
        for one in dropped:
            await self._drop(one)

    async def _forget(self, template: Template) -> None:
        try:
            await self._write(self._known)
        except BoxdError as error:
            _log.warning("template not forgotten: %s", error)
        await self._drop(template)

    async def _write(self, known: dict[str, Template]) -> None:
        await self._store.put_setting(SETTING, json.dumps([asdict(one) for one in known.values()]))

    async def _drop(self, template: Template) -> None:
        """At the latest the next start does it, which finds no setting that names it."""
        try:
            await self._assembly.backend.drop_snapshot(template.id)
        except BoxdError as error:
            _log.warning("template not removed from the host: %s; the next start does it", error)


def _usable(templates: list[Template]) -> dict[str, Template]:
    """Those whose image is still there, by key."""
    return {one.key: one for one in templates if Path(one.root).exists()}
