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
    from wrkfs.meta.interface.files import FileStore
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
TOLD_MAX = 8192
"""Inodes whose access time is remembered beyond its call, for answers that come late."""


class AccessTimes:
    """Access times of what this session reads.

    What has been shown does not step back, unless the call that told it failed: an answer that was
    asked for before a call was over may be older than what the call told, and is corrected, however
    late it comes.

    Critical sections: `_new` becomes `_telling` in one step, and that `_told` in another; one
    `_tell` runs at a time.
    """

    def __init__(self, meta: FileStore) -> None:
        self._meta = meta
        self._due: OrderedDict[Ino, None] = OrderedDict()
        self._new: dict[Ino, int] = {}
        self._telling: dict[Ino, int] = {}
        self._told: OrderedDict[Ino, tuple[int, int]] = OrderedDict()
        self._calls = 0
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def asked(self) -> int:
        """To be noted before attributes are asked for: calls that were over by then."""
        return self._calls

    def shown(self, attr: Attr, asked: int) -> Attr:
        """Attributes with the newest access time; remembers whether a read must move it."""
        ino = attr.ino
        atime = self._new.get(ino) or self._telling.get(ino)
        if atime is None and ino in self._told:
            told, call = self._told[ino]
            atime = told if asked < call else None
        if atime is not None and atime > attr.atime_ns:
            attr = replace(attr, atime_ns=atime)
        atime = attr.atime_ns
        if atime <= attr.mtime_ns or atime <= attr.ctime_ns or atime + DAY_NS <= time.time_ns():
            self._due[ino] = None
            if len(self._due) > DUE_MAX:
                self._due.popitem(last=False)
        else:
            self._due.pop(ino, None)
        return attr

    def is_due(self, ino: Ino) -> bool:
        """Whether the next read moves the time."""
        return ino in self._due

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
        self._told.pop(ino, None)

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
        else:
            self._calls += 1
            for ino, atime in self._telling.items():
                self._told[ino] = atime, self._calls
                self._told.move_to_end(ino)
            while len(self._told) > TOLD_MAX:
                self._told.popitem(last=False)
        self._telling = {}
