"""Access times as relatime keeps them: the first read after a change, or after a day, moves atime.

The kernel leaves it to the server. A read never waits for it: new times are shown here at once, and
told to the metadata store in the background, many at a time. Others see them a little later, and a
crash may lose them.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from dataclasses import replace
from typing import TYPE_CHECKING

from wrkfs.errors import WrkfsError

if TYPE_CHECKING:
    from wrkfs.meta.interface import MetaStore
    from wrkfs.types import Attr, Ino

log = logging.getLogger(__name__)

DAY_NS = 24 * 3600 * 10**9
"""An access time older than this moves with the next read, changes or not."""
TELL_DELAY = 0.2
"""Seconds in which new access times are gathered."""
TOLD_AT_ONCE = 512
"""Inodes in one call."""
DUE_MAX = 8192
"""Inodes that are remembered to need a new access time when they are read."""
CLOSE_TIMEOUT = 1.0
"""Seconds that `close` gives to the last call."""


class AccessTimes:
    """Access times of what this session reads.

    Critical sections: `_new` becomes `_telling` in one step; one `_tell` runs at a time.
    """

    def __init__(self, meta: MetaStore) -> None:
        self._meta = meta
        self._due: OrderedDict[Ino, None] = OrderedDict()
        self._new: dict[Ino, int] = {}
        self._telling: dict[Ino, int] = {}
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    def shown(self, attr: Attr) -> Attr:
        """Attributes with the newest access time; remembers whether a read must move it."""
        ino = attr.ino
        atime = self._new.get(ino) or self._telling.get(ino)
        if atime is not None and atime > attr.atime_ns:
            attr = replace(attr, atime_ns=atime)
        told = attr.atime_ns
        if told <= attr.mtime_ns or told <= attr.ctime_ns or told + DAY_NS <= time.time_ns():
            self._due[ino] = None
            if len(self._due) > DUE_MAX:
                self._due.popitem(last=False)
        else:
            self._due.pop(ino, None)
        return attr

    def read(self, ino: Ino) -> None:
        """The inode has been read: file, directory or symbolic link."""
        if ino not in self._due or self._closed:
            return
        del self._due[ino]
        self._new[ino] = time.time_ns()
        if self._task is None:
            self._task = asyncio.create_task(self._tell(), name="wrkfs access times")

    async def forget(self, ino: Ino) -> None:
        """Before a user sets the time: nothing that was read until now changes it afterwards."""
        self._new.pop(ino, None)
        while ino in self._telling and self._task is not None:
            await asyncio.wait({self._task}, timeout=TELL_DELAY)
            self._new.pop(ino, None)

    async def close(self) -> None:
        """Tells what is not told yet, if that is quickly done."""
        self._closed = True
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        self._new = {**self._telling, **self._new}
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT):
                while self._new:
                    await self._tell_some()
        except TimeoutError:
            log.debug("access times of %d inodes are lost", len(self._new))

    async def _tell(self) -> None:
        try:
            while self._new:
                await asyncio.sleep(TELL_DELAY)
                await self._tell_some()
        finally:
            self._task = None

    async def _tell_some(self) -> None:
        some = sorted(self._new)[:TOLD_AT_ONCE]
        self._telling = {ino: self._new.pop(ino) for ino in some}
        try:
            await self._meta.touch(self._telling)
        except WrkfsError as error:
            # Nobody waits for an access time: the next read after a change sets it again.
            log.debug("access times of %d inodes are lost: %s", len(some), error)
        self._telling = {}
