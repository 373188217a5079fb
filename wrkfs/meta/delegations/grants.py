"""The delegations of a session: it asks for them, and gives them back when others need them."""

from __future__ import annotations

import time
from collections import OrderedDict
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from wrkfs.meta.delegations.flusher import Flusher
    from wrkfs.meta.interface.delegations import DelegationStore
    from wrkfs.meta.leases.lease_table import LeaseTable
    from wrkfs.types import Attr, Ino

CONTENDED = 5.0
"""Seconds after a recall or a refusal before the session asks for a delegation again."""
_TREE_MAX = 1024
"""Maximum number of directories that one recall gives back."""


class Grants:
    """Which directories the session decides about: `CachedDirectory.delegated` in the lease table.

    Critical sections: `_asking` contains a directory from the request for its delegation until the
    answer has been used. A recall that arrives meanwhile ends the delegation at once. `_making` has
    a set for each directory that the database creates: the directories recalled meanwhile. The
    session learns the number of the new one only from the answer.
    """

    def __init__(self, inner: DelegationStore, table: LeaseTable, flusher: Flusher) -> None:
        self._inner = inner
        self._table = table
        self._flusher = flusher
        self._not_before: OrderedDict[Ino, float] = OrderedDict()
        self._asking: dict[Ino, bool] = {}
        self._making: list[set[Ino]] = []
        inner.watch_delegations(self.recalled, self.is_contended)

    async def take(self, directory: Ino) -> bool:
        """Return True if the session has the delegation of a directory, or gets it now."""
        cached = self._table.usable(directory)
        return cached is not None and (cached.delegated or await self._ask(directory))

    def is_durable(self, directory: Ino) -> bool:
        """Return True if a delegation covers a directory whose entries are durable.

        A batch that was sent under the delegation is durable, and so is all that came before it.
        """
        cached = self._table.usable(directory)
        if cached is None or not cached.delegated:
            return False
        return self._flusher.idle and self._flusher.sent > cached.granted_after

    def is_contended(self, directory: Ino) -> bool:
        """Return True if another session has needed a directory in the last seconds."""
        until = self._not_before.get(directory)
        return until is not None and time.monotonic() < until

    @contextmanager
    def making(self) -> Iterator[set[Ino]]:
        """Collect the directories that are recalled while the database creates one."""
        recalled: set[Ino] = set()
        self._making.append(recalled)
        try:
            yield recalled
        finally:
            self._making = [other for other in self._making if other is not recalled]

    def adopt_created(self, attr: Attr, recalled: set[Ino]) -> None:
        """Take over the delegation that comes with a new directory; `recalled` is from `making`."""
        cached = self._table.directories.get(attr.ino)
        if cached is not None and cached.attr is attr and attr.ino not in recalled:
            is_granted = self._flusher.can_record and attr.ino in self._inner.granted
            cached.delegated, cached.granted_after = is_granted, self._flusher.sent
        self._inner.granted.discard(attr.ino)

    def recalled(self, directories: Sequence[Ino]) -> None:
        """Give delegations back: another session waits to read. The leases stay."""
        ended: list[Ino] = []
        for making in self._making:
            making.update(directories)
        for directory in directories:
            if directory in self._asking:
                self._asking[directory] = True
            self._postpone(directory)
            recalled = self._table.directories.get(directory)
            if recalled is not None and recalled.attr is not None:
                # The other session may list the parent, whose listing has these attributes. New
                # delegations in it would hold that up again and again.
                self._postpone(recalled.attr.parent)
            ended += self._tree(directory)
        for directory in ended:
            cached = self._table.directories.get(directory)
            if cached is not None:
                cached.delegated = False
        self._flusher.release(ended)
        self._flusher.send_now()

    async def give_back(self, directories: Sequence[Ino]) -> None:
        """End the delegations of directories whose leases end."""
        if self._flusher.can_record or not self._flusher.idle:
            for directory in directories:
                self._postpone(directory)
            self._flusher.release(directories)
            await self._flusher.flush()

    # -- internal --

    async def _ask(self, directory: Ino) -> bool:
        """Ask for the delegation of a leased directory."""
        cached = self._table.directories.get(directory)
        above = None if cached is None or cached.attr is None else cached.attr.parent
        if self.is_contended(directory) or (above is not None and self.is_contended(above)):
            return False
        if directory in self._asking or self._table.changes.touches(directory):
            return False
        if self._flusher.is_releasing(directory):
            return False  # the database would grant what that batch then ends
        self._asking[directory] = False
        try:
            granted = await self._inner.delegate(directory)
            recalled = self._asking[directory]
        finally:
            del self._asking[directory]
        if granted and not recalled and self._table.directories.get(directory) is cached:
            if cached is not None:
                cached.delegated, cached.granted_after = True, self._flusher.sent
            return True
        self._postpone(directory)
        if granted:
            self._flusher.release([directory])
            await self._flusher.flush()
        return False

    def _postpone(self, directory: Ino) -> None:
        now = time.monotonic()
        self._not_before[directory] = now + CONTENDED
        self._not_before.move_to_end(directory)
        while next(iter(self._not_before.values())) <= now:
            self._not_before.popitem(last=False)

    def _tree(self, directory: Ino) -> list[Ino]:
        """Return a directory and the delegated ones below it: the other session may walk them."""
        directories, position = [directory], 0
        while position < len(directories) and len(directories) < _TREE_MAX:
            cached = self._table.directories.get(directories[position])
            position += 1
            for entry in cached.names.values() if cached is not None else ():
                below = None if entry is None else self._table.directories.get(entry.ino)
                if entry is not None and below is not None and below.delegated:
                    directories.append(entry.ino)
        return directories
