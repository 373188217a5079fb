"""Access times with relatime semantics: the first read after a change, or after a day, moves atime.

The kernel leaves access times to the server. A read does not wait for its access time: this session
returns the new time at once, and sends it to the metadata store in the background, in batches.
Other sessions see it a little later. A crash may lose it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from dataclasses import replace
from typing import TYPE_CHECKING

from wrkfs.errors import WrkfsError
from wrkfs.meta.rules import is_read_only

if TYPE_CHECKING:
    from wrkfs.meta.interface.files import FileStore
    from wrkfs.types import Attr, Ino

log = logging.getLogger(__name__)

DAY_NS = 24 * 3600 * 10**9
"""Nanoseconds after which the next read moves an access time even without a change."""
SEND_DELAY = 0.2
"""Seconds for which new access times gather before one call sends them."""
BATCH = 512
"""Maximum number of inodes in one call."""
DUE_MAX = 8192
"""Maximum number of inodes that are remembered as due: their next read moves the access time."""
CLOSE_TIMEOUT = 1.0
"""Maximum number of seconds that `close` spends on the last calls."""
SENT_MAX = 8192
"""Maximum number of inodes whose time is remembered after its call, to correct late answers."""


class AccessTimes:
    """Access times of the inodes that this session reads.

    An access time that this session returned never steps back, unless the call that sent it failed.
    An answer that was requested before a call ended may be older than that call; `correct` replaces
    its time, however late it arrives.

    Critical sections: inodes move from `_new` to `_sending` in one step, and from there to `_sent`
    in another. One `_send` runs at a time.
    """

    def __init__(self, meta: FileStore) -> None:
        self._meta = meta
        self._due: OrderedDict[Ino, None] = OrderedDict()
        self._new: dict[Ino, int] = {}
        self._sending: dict[Ino, int] = {}
        self._sent: OrderedDict[Ino, tuple[int, int]] = OrderedDict()
        """Access time, and the number of the call that sent it."""
        self._calls = 0
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def stamp(self) -> int:
        """Number of calls that have ended. Take it before a request, pass it to `correct`."""
        return self._calls

    def correct(self, attr: Attr, stamp: int) -> Attr:
        """Return attributes with the newest access time; record whether the next read is due."""
        ino = attr.ino
        atime = self._new.get(ino) or self._sending.get(ino)
        if atime is None and ino in self._sent:
            sent_atime, call = self._sent[ino]
            atime = sent_atime if stamp < call else None
        if atime is not None and atime > attr.atime_ns:
            attr = replace(attr, atime_ns=atime)
        atime = attr.atime_ns
        is_old = atime <= max(attr.mtime_ns, attr.ctime_ns) or atime + DAY_NS <= time.time_ns()
        if is_old and not is_read_only(ino):
            self._due[ino] = None
            if len(self._due) > DUE_MAX:
                self._due.popitem(last=False)
        else:
            self._due.pop(ino, None)
        return attr

    def is_due(self, ino: Ino) -> bool:
        """Return True if the next read moves the access time."""
        return ino in self._due

    def read(self, ino: Ino) -> None:
        """Record that a file, directory or symbolic link was read."""
        if ino not in self._due or self._closed:
            return
        del self._due[ino]
        self._new[ino] = time.time_ns()
        if self._task is None:
            self._task = asyncio.create_task(self._send(), name="wrkfs access times")

    async def forget(self, ino: Ino) -> None:
        """Drop the times of earlier reads, before a user sets the access time of an inode."""
        self._new.pop(ino, None)
        while ino in self._sending and self._task is not None:
            await asyncio.wait({self._task}, timeout=SEND_DELAY)
            self._new.pop(ino, None)
        self._sent.pop(ino, None)

    async def close(self) -> None:
        """Send the remaining times, within `CLOSE_TIMEOUT`."""
        self._closed = True
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        self._new = {**self._sending, **self._new}
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT):
                while self._new:
                    await self._send_batch()
        except TimeoutError:
            log.debug("access times of %d inodes are lost", len(self._new))

    async def _send(self) -> None:
        try:
            while self._new:
                await asyncio.sleep(SEND_DELAY)
                await self._send_batch()
        finally:
            self._task = None

    async def _send_batch(self) -> None:
        batch = sorted(self._new)[:BATCH]
        self._sending = {ino: self._new.pop(ino) for ino in batch}
        try:
            await self._meta.touch(self._sending)
        except WrkfsError as error:
            # Access times are best effort: the next read after a change sets them again.
            log.debug("access times of %d inodes are lost: %s", len(batch), error)
        else:
            self._calls += 1
            for ino, atime in self._sending.items():
                self._sent[ino] = atime, self._calls
                self._sent.move_to_end(ino)
            while len(self._sent) > SENT_MAX:
                self._sent.popitem(last=False)
        self._sending = {}
