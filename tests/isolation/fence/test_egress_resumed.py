"""The fence of a box that runs from a memory is that of one that was started."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.harness.boxes.lives import WAYS
from tests.harness.network.fence import PORT, both, host_listener, neighbour, probe
from tests.harness.network.neighbour import HOST_SIDE, PRIVATE, PUBLIC, PUBLIC_TOO

if TYPE_CHECKING:
    from tests.harness.boxes.suspending import Sleepy
    from tests.harness.network.answers import Answers
    from tests.harness.network.neighbour import Neighbour

__all__ = ["host_listener", "neighbour"]
LIST = f"{PUBLIC}:{PORT}"


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("way", "egress"),
    [
        *(("resumed", egress) for egress in ("all", "none", LIST)),
        *(("copied", egress) for egress in ("all", LIST)),
        ("forked", "none"),
        ("restored", LIST),
    ],
)
async def test_it_reaches_what_a_started_one_reaches(
    sleepy: Sleepy, neighbour: Neighbour, host_listener: Answers, way: str, egress: str
) -> None:
    guest = await WAYS[way](sleepy, egress=egress)
    await guest.goes_on()
    wide = [("tcp", PUBLIC, PORT), ("tcp", PUBLIC_TOO, PORT)]
    heard = len(neighbour.answers.heard)
    answered = [one == "answered" for one in await probe(sleepy.host, guest.box, wide)]
    assert answered == {"all": [True, True], "none": [False, False]}.get(egress, [True, False])
    own = sleepy.host.address(guest.box).rsplit(".", 1)
    gateway = f"{own[0]}.{int(own[1]) - 1}"
    denied = both([HOST_SIDE, *PRIVATE, gateway, "169.254.169.254"], PORT)
    assert "answered" not in await probe(sleepy.host, guest.box, denied)
    assert host_listener.heard == []
    assert {here for here, _ in neighbour.answers.heard[heard:]} <= {PUBLIC, PUBLIC_TOO}
