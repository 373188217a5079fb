"""The front door outlives what is said to it in keys, with and without a proof of who says it."""

from __future__ import annotations

import asyncio
import gc
from random import Random
from typing import TYPE_CHECKING

import pytest

from tests.fuzz.harmless import BOX, TEXT_ONLY, harmless
from tests.fuzz.judged import judged_door
from tests.fuzz.messages import connection, on_channel, session
from tests.fuzz.mutations import spoilt
from tests.fuzz.rounds import connected, in_a_box, key_of, proved, unproved
from tests.fuzz.wire import number, string

if TYPE_CHECKING:
    from tests.harness.ssh.frontdoor import Entrance
    from tests.plugins.figures import Figures


@pytest.mark.timeout(600)
@pytest.mark.figure("FZ-1")
async def test_nonsense_in_keys(figures: Figures) -> None:
    async with judged_door(unproved, proved, in_a_box) as judge:
        await judge.run(unproved, figures(ci=2000, long=200_000, part="unproved"))
        await judge.run(proved, figures(ci=700, long=70_000, part="proved"))
        await judge.run(in_a_box, figures(ci=300, long=30_000, part="in a box"))


async def test_nothing_is_done_for_what_comes_after_a_goodbye(front_door: Entrance) -> None:
    """asyncssh goes on with what it has read: the forwarding was prepared, and never begun."""

    def leave() -> None:
        wire = connected(front_door.door.port, key_of(1))
        try:
            wire.exchange_keys()
            assert wire.log_in("cli")
            goodbye = b"\x01" + number(11) + string(b"enough") + string(b"")
            head = b"\x5a" + string(b"direct-tcpip") + number(0) + number(1 << 20) + number(1 << 15)
            place = string(b"127.0.0.1") + number(9)
            wire.write(wire.sealed(goodbye) + wire.sealed(head + place * 2))
            wire.wait_for_end()
        finally:
            wire.close()

    await asyncio.to_thread(leave)
    gc.collect()  # where what was never awaited complains


def test_nothing_reaches_a_box_that_is_not_known() -> None:
    """What these tests say is spoilt at random, and the box is this machine."""
    where, asks = b"\x62" + number(0), b"\1"
    for said in (
        where + string(b"shell") + asks,
        where + string(b"exec") + asks + string(b"reboot"),
        where + string(b"exec") + asks + string(b"cat") + b"\n",
        where + string(b"subsystem") + asks + string(b"sftp"),
        where + string(b"env") + asks + string(b"BASH_ENV") + string(b"/tmp/x"),
        where + string(b"nonsense") + asks,
        b"\x5a" + string(b"direct-streamlocal@openssh.com") + number(0) * 3 + string(b"/run/x"),
        b"\x5a" + string(b"direct-tcpip") + number(0) * 3 + string(b"127.0.0.1") + number(22),
        b"\x5a",
        b"\x62\0",
    ):
        assert not harmless(BOX, said), said
    assert harmless(BOX, where + string(b"exec") + asks + string(b"cat"))
    assert BOX not in TEXT_ONLY


def test_most_of_what_is_said_to_a_box_is_let_through() -> None:
    """Else its test would test nothing."""
    random, passed, kept = Random(1), set(), 0
    for _ in range(300):
        said = [session(random), connection(random, BOX), *on_channel(random, BOX, 0)]
        for packet in spoilt(random, said):
            if harmless(BOX, packet):
                passed.add(packet[:1])
            else:
                kept += 1
    assert {bytes([kind]) for kind in (0x5A, 0x5D, 0x5E, 0x5F, 0x60, 0x61, 0x62)} <= passed
    assert kept > 0
