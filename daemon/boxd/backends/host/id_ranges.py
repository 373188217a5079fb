"""Ranges of the host's user and group ids for boxes: the ids 0 to 65,535 of a box.

No two boxes of a host have the same range at a time, because the kernel counts some resources for
each id. Files on disks have the ids that the box sees (`id_maps`), so a box can get another range
at each start. The ranges come in blocks, which the installation claims (`boxd.sandbox.id_claims`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from boxd.errors import Unavailable
from boxd.sandbox.id_claims import FIRST, IdClaims, record, recorded

if TYPE_CHECKING:
    from boxd.backends.host.names import HostNames

COUNT = 65_536
"""Ids in a range."""
PER_BLOCK = 1024
"""Ranges in a block."""
BLOCKS = 15
"""Blocks below 2^31. CRIU reads larger ids as negative numbers, and systemd uses the last block."""


@dataclass(frozen=True, slots=True)
class IdRange:
    """A range of ids of the host, from `first` on."""

    first: int

    @property
    def mapping(self) -> str:
        """The line for the kernel's uid_map and gid_map."""
        return f"0 {self.first} {COUNT}\n"

    @property
    def oci(self) -> list[dict[str, int]]:
        """The mapping in an OCI configuration."""
        return [{"containerID": 0, "hostID": self.first, "size": COUNT}]


class IdRanges:
    """The ranges of one installation. All calls block for a short time."""

    def __init__(self, names: HostNames, claims: IdClaims | None = None) -> None:
        self._instance = names.instance
        self._record = names.boxes_dir / "id-blocks"
        self._claims = IdClaims(names.instance) if claims is None else claims
        self._blocks: list[int] = []

    def setup(self) -> None:
        """Claim the recorded blocks, or others if another installation has them."""
        with self._claims.locked():
            self._blocks = []
            for block in recorded(self._record):
                self._blocks.append(block if self._claim(block) else self._claim_any())
        record(self._record, self._blocks)

    def of(self, slot: int) -> IdRange:
        """Return the range of a slot. Raises Unavailable if no ids are left."""
        number = slot // PER_BLOCK
        if number >= len(self._blocks):
            with self._claims.locked():
                while number >= len(self._blocks):
                    self._blocks.append(self._claim_any())
            record(self._record, self._blocks)
        return IdRange(FIRST + (self._blocks[number] * PER_BLOCK + slot % PER_BLOCK) * COUNT)

    def release(self) -> None:
        """Give all blocks back. Call this only when no box runs."""
        with self._claims.locked():
            for block in self._blocks:
                self._claims.release(str(block))
        self._blocks = []

    def _claim_any(self) -> int:
        # Services in separate containers do not see each other's claims. They rarely begin alike.
        first = int(self._instance, 16)
        for block in ((first + number) % BLOCKS for number in range(BLOCKS)):
            if block not in self._blocks and self._claim(block):
                return block
        raise Unavailable(
            "no user ids are left for boxes: other installations, /etc/subuid or /etc/subgid use "
            f"all ids from {FIRST} on; remove boxes, or change those files"
        )

    def _claim(self, block: int) -> bool:
        size = PER_BLOCK * COUNT
        return block < BLOCKS and self._claims.claim(str(block), FIRST + block * size, size)
