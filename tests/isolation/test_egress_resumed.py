"""The fence of a box that slept with its memory is the one that it had."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.harness.neighbour import HOST_SIDE, PRIVATE, PUBLIC, PUBLIC_TOO
from tests.isolation.test_egress import PORT, both, host_listener, neighbour, probe

if TYPE_CHECKING:
    from tests.harness.answers import Answers
    from tests.harness.neighbour import Neighbour
    from tests.harness.suspending import Sleepy

__all__ = ["host_listener", "neighbour"]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("egress", ["all", "none", f"{PUBLIC}:{PORT}"])
async def test_a_resumed_box_reaches_what_it_reached(
    sleepy: Sleepy, neighbour: Neighbour, host_listener: Answers, egress: str
) -> None:
    guest = await sleepy.guest(egress=egress)
    wide = [("tcp", PUBLIC, PORT), ("tcp", PUBLIC_TOO, PORT)]
    before = [one == "answered" for one in await probe(sleepy.host, guest.box, wide)]
    assert before == {"all": [True, True], "none": [False, False]}.get(egress, [True, False])
    await sleepy.suspend(guest)
    await sleepy.resume(guest)
    await guest.goes_on()
    heard = len(neighbour.answers.heard)
    after = [one == "answered" for one in await probe(sleepy.host, guest.box, wide)]
    assert after == before
    own = sleepy.host.address(guest.box).rsplit(".", 1)
    gateway = f"{own[0]}.{int(own[1]) - 1}"
    denied = both([HOST_SIDE, *PRIVATE, gateway, "169.254.169.254"], PORT)
    assert "answered" not in await probe(sleepy.host, guest.box, denied)
    assert host_listener.heard == []
    assert {here for here, _ in neighbour.answers.heard[heard:]} <= {PUBLIC, PUBLIC_TOO}
