"""Boxes with an egress list, and a name server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest_asyncio

from tests.harness.boxes.backend import BoxHost, open_box_host
from tests.harness.network import neighbour as beside
from tests.harness.network.fence import PORT, probe
from tests.harness.network.nameserver import NameServer, serving
from tests.harness.network.neighbour import PRIVATE, PUBLIC, PUBLIC_TOO, Neighbour, in_namespace

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

OTHER_PORT = 9214
METADATA = "169.254.169.254"
ZONE = {
    "allowed.test": [PUBLIC],
    "other.test": [PUBLIC_TOO],
    "www.wild.test": [PUBLIC],
    "deep.www.wild.test": [PUBLIC],
    "wild.test": [PUBLIC],
    "alias.test": ["=allowed.test"],
    "rebound.test": [METADATA, PRIVATE[0], "127.0.0.1"],
    "half.test": [PRIVATE[0], PUBLIC],
    "many.test": [PUBLIC, *(f"198.51.100.{n}" for n in range(1, 29))],
}


class ListHost:
    """A box host whose resolver is the test's name server, and a machine beside it."""

    def __init__(self, host: BoxHost, neighbour: Neighbour, names: NameServer) -> None:
        self.host = host
        self.neighbour = neighbour
        self.names = names

    async def reach(self, box: str, *targets: tuple[str, int]) -> list[bool]:
        """Return whether each (name or address, port) answers over TCP."""
        outcome = await probe(self.host, box, [("tcp", name, port) for name, port in targets])
        return [one == "answered" for one in outcome]


@pytest_asyncio.fixture
async def lists(tmp_path: Path, image_rootfs: Path) -> AsyncIterator[ListHost]:
    """Yield a `ListHost`."""
    conf = tmp_path / "resolv.conf"
    conf.write_text(f"nameserver {PRIVATE[0]}\n")
    with beside.neighbour(PORT, OTHER_PORT) as machine, serving(NameServer(dict(ZONE))) as names:
        in_namespace(machine.name, lambda: names.listen(PRIVATE[0]))
        async with open_box_host(tmp_path / "state", image_rootfs, conf) as host:
            yield ListHost(host, machine, names)


async def check_a_listed_name_is_reached_and_another_is_not(lists: ListHost) -> None:
    """A box reaches a listed name and no other name."""
    box = await lists.host.box(egress="allowed.test")
    assert await lists.reach(box, (PUBLIC, PORT)) == [False], "nobody has asked for its name yet"
    assert await lists.reach(box, ("allowed.test", PORT), ("other.test", PORT)) == [True, False]
    assert lists.names.asked == ["allowed.test"], "the other name is not even asked for"
    assert await lists.reach(box, (PUBLIC, OTHER_PORT), (PUBLIC_TOO, PORT)) == [True, False]
    assert lists.neighbour.packets()[PUBLIC_TOO] == 0
