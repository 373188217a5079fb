"""Source addresses: the addresses of owners, and the running boxes that each address started.

A key costs nothing, so per-owner limits do not bound a user who creates a key for each box. A box
that is awake counts for the source from which its owner last authenticated before the start. All
counts are in memory: after a restart of the daemon, running boxes count for no source.

Critical section: none. No method awaits, so each is atomic on the event loop.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from boxd.boxes.limits.tier_limits import AWAKE, check_source
from boxd.names.source import is_exempt, source_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from boxd.boxes.limits.tier_limits import Tier
    from boxd.model.box import Box
    from boxd.names.source import Network

REMEMBERED = 10_000
"""Owners whose source is remembered; the daemon forgets the least recent first."""


class SourceAddresses:
    """Counts boxes by source. Loopback and the networks of `trusted` do not count."""

    def __init__(self, trusted: Iterable[Network] = ()) -> None:
        self._trusted = tuple(trusted)
        self._owners: OrderedDict[str, str | None] = OrderedDict()
        self._boxes: dict[str, str] = {}

    def came(self, owner: str, address: str) -> None:
        """Record the address from which an owner authenticated; empty: it has none."""
        self._owners[owner] = self.source(address)
        self._owners.move_to_end(owner)
        while len(self._owners) > REMEMBERED:
            self._owners.popitem(last=False)

    def source(self, address: str) -> str | None:
        """Return the source of an address. None: it does not count."""
        exempt = not address or is_exempt(address, self._trusted)
        return None if exempt else source_of(address)

    def start(self, box: Box, others: Sequence[Box], tier: Tier) -> None:
        """Count a box that is about to run. `others` are all other boxes.

        Raises QuotaExceeded if too many running boxes were started from the source of its owner.
        """
        awake = {one.id for one in others if one.state in AWAKE}
        self._boxes = {id_: source for id_, source in self._boxes.items() if id_ in awake}
        source = self._owners.get(box.owner)
        if source is not None:
            check_source(list(self._boxes.values()).count(source), tier)
            self._boxes[box.id] = source
