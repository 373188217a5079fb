"""From where owners come, and how many boxes run that were started from there.

A key costs nothing, so limits of an owner bound nobody who makes a new one for each box. A box
counts for the source from which its owner came last when it was started, as long as it is awake.
All of it is in memory: after a restart of the daemon the boxes that run count for no source.

No method awaits, so each is atomic on the event loop.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from boxd.boxes.quota import AWAKE, check_source
from boxd.names.source import is_exempt, source_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from boxd.boxes.quota import Tier
    from boxd.model.box import Box
    from boxd.names.source import Network

REMEMBERED = 10_000
"""Owners of whom is known where they came from; who came longest ago is forgotten first."""


class Sources:
    """See the module. Loopback and the networks of `trusted` are no sources."""

    def __init__(self, trusted: Iterable[Network] = ()) -> None:
        self._trusted = tuple(trusted)
        self._owners: OrderedDict[str, str | None] = OrderedDict()
        self._boxes: dict[str, str] = {}

    def came(self, owner: str, address: str) -> None:
        """An owner has authenticated from an address; empty: it has none."""
        exempt = not address or is_exempt(address, self._trusted)
        self._owners[owner] = None if exempt else source_of(address)
        self._owners.move_to_end(owner)
        while len(self._owners) > REMEMBERED:
            self._owners.popitem(last=False)

    def start(self, box: Box, others: Sequence[Box], tier: Tier) -> None:
        """Counts a box that is about to run beside `others`, which are all that there are.

        QuotaExceeded when too many run that were started from where its owner came from.
        """
        awake = {one.id for one in others if one.state in AWAKE}
        self._boxes = {id_: source for id_, source in self._boxes.items() if id_ in awake}
        source = self._owners.get(box.owner)
        if source is not None:
            check_source(list(self._boxes.values()).count(source), tier)
            self._boxes[box.id] = source
