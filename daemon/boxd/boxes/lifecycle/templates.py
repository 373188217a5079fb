"""Templates: new boxes that resume from the memory of a freshly booted box instead of booting.

A template is a snapshot without an owner. The daemon creates it in the background when a box had to
boot because there was no template. The source is a box without a row, after its agent has sent
hello and closed its tunnel. A copy gets its own host key, name and address. Its agent loads them,
with fresh randomness, before it sends hello. A failed copy is not an error: the box boots, and the
daemon drops the template.

The key of a template consists of image, guest runtime, size and system call filter. So a template
of an older image is never used. The daemon drops a template when there are too many, or when its
image has been removed. A setting lists the templates; the daemon adds a template once the host has
it complete.

Critical section: `_creation` allows the creation of one template at a time. `_by_key` changes
between awaits.
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
from boxd.tasks import BackgroundTasks

if TYPE_CHECKING:
    from collections.abc import Collection

    from boxd.boxes.lifecycle.collaborators import Collaborators
    from boxd.model.box import Box

MOST = 8
"""Maximum number of templates to keep; the daemon drops the oldest first."""
SETTING = "templates"
_NAME = "template"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Template:
    """`id` is the id of the snapshot on the host, `root` the unpacked image that it is based on."""

    key: str
    id: str
    root: str


class Templates:
    """Creates, finds and drops templates. With `on` false it does none of this."""

    def __init__(self, collaborators: Collaborators, *, on: bool) -> None:
        self._on = on
        self._store = collaborators.store
        self._assembly = collaborators.assembly
        self._timers = collaborators.timers
        self._by_key: dict[str, Template] = {}
        self._refused: set[str] = set()
        self._creation = asyncio.Lock()
        self._tasks = BackgroundTasks()

    async def start(self) -> Collection[str]:
        """Load the templates of earlier daemons. Return their ids on the host.

        Raises Unavailable.
        """
        text = await self._store.setting(SETTING)
        stored = [Template(**raw) for raw in json.loads(text or "[]")]
        if self._on:
            self._by_key = await asyncio.to_thread(_usable, stored)
        return [one.id for one in self._by_key.values()]

    async def close(self) -> None:
        """Cancel the creation of templates, and remove incomplete ones."""
        await self._tasks.close()

    def find(self, box: Box) -> str | None:
        """Return the id of a template for a new box, or None if the box has to boot."""
        template = self._by_key.get(self._key(box)) if self._able() else None
        return None if template is None else template.id

    def has(self, template_id: str) -> bool:
        """Return whether a template with this id exists."""
        return any(one.id == template_id for one in self._by_key.values())

    def wanted(self, box: Box) -> None:
        """Start creating a template for boxes like this one, which had to boot."""
        key = self._key(box) if self._able() else None
        if key is None or key in self._by_key or key in self._refused:
            return
        self._tasks.start(self._make(key, box), name=f"template of {box.image}")

    async def lost(self, box: Box) -> None:
        """Drop the template of a box after a failed copy. The next boot creates a new one."""
        template = self._by_key.pop(self._key(box), None)
        if template is not None:
            await self._forget(template)

    def _able(self) -> bool:
        return self._on and self._assembly.backend.capabilities().fork

    def _key(self, box: Box) -> str:
        """Return a hash of everything that the memory and the layer of a fresh box depend on."""
        root = self._assembly.root(box.image)
        rules = self._assembly.backend.capabilities().call_filter
        facts = (str(root and root.resolve()), box.image, self._assembly.runtime, box.mem_mb, rules)
        return hashlib.sha256(repr(facts).encode()).hexdigest()

    async def _make(self, key: str, like: Box) -> None:
        async with self._creation:
            if key in self._by_key or key in self._refused:
                return
            root = self._assembly.root(like.image)
            template = Template(key, random_hex(16), str(root and root.resolve()))
            try:
                await self._boot_and_keep(like, template)
                await self._remember(template)
            except (BoxdError, OSError, ExceptionGroup) as error:
                # This daemon does not try again: boxes can still boot, only slower.
                self._refused.add(key)
                _log.warning("cannot create a template of image %s: %s", like.image, error)
                await self._drop(template)
            else:
                _log.info("created a template of image %s: %s", like.image, template.id)

    async def _boot_and_keep(self, like: Box, template: Template) -> None:
        """Boot a box without owner or row, take a snapshot, and destroy the box.

        If that fails, the timers remove the rest.
        """
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
                self._timers.retry_removal(box, error)

    async def _remember(self, template: Template) -> None:
        """Add a template to the setting. Drops the oldest ones, and those without an image."""
        usable = await asyncio.to_thread(_usable, [*self._by_key.values(), template])
        for key in list(usable)[:-MOST]:
            del usable[key]
        dropped = [one for key, one in self._by_key.items() if key not in usable]
        await self._write(usable)
        self._by_key = usable
        for one in dropped:
            await self._drop(one)

    async def _forget(self, template: Template) -> None:
        try:
            await self._write(self._by_key)
        except BoxdError as error:
            _log.warning("cannot remove a template from the settings: %s", error)
        await self._drop(template)

    async def _write(self, templates: dict[str, Template]) -> None:
        await self._store.put_setting(
            SETTING, json.dumps([asdict(one) for one in templates.values()])
        )

    async def _drop(self, template: Template) -> None:
        """Remove a template from the host.

        After a failure, the next start removes it, because no setting names it.
        """
        try:
            await self._assembly.backend.drop_snapshot(template.id)
        except BoxdError as error:
            _log.warning(
                "cannot remove a template from the host: %s; the next start tries again",
                error,
            )


def _usable(templates: list[Template]) -> dict[str, Template]:
    """Return the templates whose image still exists, by key."""
    return {one.key: one for one in templates if Path(one.root).exists()}
