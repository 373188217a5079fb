"""Egress by a list of names, wildcards, ranges, ports: what it allows works, and nothing else."""

from __future__ import annotations

from pathlib import Path

from boxd.backends.host.run import run
from boxd.backends.network.fence import DNS_ADDRESSES
from boxd.backends.runc.backend import RuncBackend
from tests.harness.boxes.backend import STAND_IN
from tests.harness.network.egress_lists import (
    METADATA,
    OTHER_PORT,
    ZONE,
    ListHost,
    check_a_listed_name_is_reached_and_another_is_not,
    lists,
)
from tests.harness.network.fence import PORT, both, probe
from tests.harness.network.neighbour import PRIVATE, PUBLIC, PUBLIC_TOO

__all__ = ["lists"]


async def test_a_listed_name_is_reached_and_another_is_not(lists: ListHost) -> None:
    await check_a_listed_name_is_reached_and_another_is_not(lists)


async def test_a_wildcard_means_what_is_below_the_name(lists: ListHost) -> None:
    box = await lists.host.box(egress="*.wild.test")
    assert await lists.reach(box, ("wild.test", PORT), ("notwild.test", PORT)) == [False, False]
    assert await lists.reach(box, ("www.wild.test", PORT)) == [True]
    assert await lists.reach(box, ("DEEP.www.Wild.test", PORT)) == [True]


async def test_a_range_needs_no_name(lists: ListHost) -> None:
    box = await lists.host.box(egress="198.51.100.0/24")
    assert await lists.reach(box, (PUBLIC, PORT), (PUBLIC_TOO, PORT)) == [True, False]
    assert await lists.reach(box, ("allowed.test", PORT)) == [False], "names are not listed"
    assert lists.names.asked == []


async def test_an_entry_with_a_port_opens_that_port(lists: ListHost) -> None:
    box = await lists.host.box(egress=f"allowed.test:{PORT},{PUBLIC_TOO}:{OTHER_PORT}")
    targets = [("allowed.test", PORT), ("allowed.test", OTHER_PORT)]
    targets += [(PUBLIC_TOO, PORT), (PUBLIC_TOO, OTHER_PORT)]
    assert await lists.reach(box, *targets) == [True, False, False, True]


async def test_an_alias_leads_to_the_address_and_opens_no_other_name(lists: ListHost) -> None:
    box = await lists.host.box(egress="alias.test")
    assert await lists.reach(box, ("alias.test", PORT), ("allowed.test", PORT)) == [True, False]


async def test_a_name_that_is_rebound_to_a_denied_address_leads_nowhere(lists: ListHost) -> None:
    box = await lists.host.box(egress="rebound.test,half.test")
    program = "import socket\nfor n in 'rebound.test', 'half.test':\n    try:\n"
    program += "        print(sorted({a[4][0] for a in socket.getaddrinfo(n, 1)}))\n"
    program += "    except OSError:\n        print('nothing')\n"
    told = await lists.host.python(box, program)
    assert told.out.splitlines() == ["nothing", f"['{PUBLIC}']"]
    denied = both([METADATA, *PRIVATE], PORT)
    assert "answered" not in await probe(lists.host, box, denied)
    packets = lists.neighbour.packets()
    assert {a: n for a, n in packets.items() if n and a not in (PUBLIC, PRIVATE[0])} == {}


async def test_large_answers_come_over_tcp(lists: ListHost) -> None:
    box = await lists.host.box(egress="many.test")
    program = "import socket; print(len({a[4][0] for a in socket.getaddrinfo('many.test', 1)}))"
    assert (await lists.host.python(box, program)).out.strip() == str(len(ZONE["many.test"]))
    assert await lists.reach(box, (PUBLIC, PORT)) == [True]


async def test_a_list_is_its_own_boxs_alone(lists: ListHost) -> None:
    one = await lists.host.box(egress="allowed.test")
    other = await lists.host.box(egress="other.test")
    none = await lists.host.box(egress="none")
    assert await lists.reach(one, ("allowed.test", PORT)) == [True]
    assert await lists.reach(other, ("allowed.test", PORT), (PUBLIC, PORT)) == [False, False]
    assert await lists.reach(other, ("other.test", PORT)) == [True]
    assert await lists.reach(none, ("other.test", PORT), (PUBLIC_TOO, PORT)) == [False, False]
    asked = [("dns", str(address), 53) for address in DNS_ADDRESSES]
    assert "answered" not in await probe(lists.host, none, asked)


async def test_the_hosts_resolver_is_out_of_reach(lists: ListHost) -> None:
    box = await lists.host.box(egress="allowed.test")
    own = lists.host.address(box).rsplit(".", 2)[0] + ".255.254"
    targets = [("dns", PRIVATE[0], 53), ("tcp", PRIVATE[0], 53), ("dns", own, 53)]
    targets += [("dns", own, 10053), ("tcp", own, 10053)]
    assert "answered" not in await probe(lists.host, box, targets)
    assert lists.names.asked == []


async def test_other_boxes_do_not_ask_the_resolver_of_lists(lists: ListHost) -> None:
    await lists.host.box(egress="allowed.test")
    every = await lists.host.box(egress="all")
    assert await lists.reach(every, ("other.test", PORT)) == [True]
    own = lists.host.address(every).rsplit(".", 2)[0] + ".255.254"
    assert "answered" not in await probe(lists.host, every, [("dns", own, 10053)])


async def test_a_list_outlives_the_daemon(lists: ListHost) -> None:
    """What is open stays open without it; names work again with the next one."""
    box = await lists.host.box(egress="allowed.test,other.test")
    assert await lists.reach(box, ("allowed.test", PORT)) == [True]
    await lists.host.backend.close()
    assert await lists.reach(box, (PUBLIC, PORT)) == [True]
    assert await lists.reach(box, ("other.test", PORT)) == [False]
    conf = Path(lists.host.config.state_dir).parent / "resolv.conf"
    heir = RuncBackend(lists.host.config, init=STAND_IN, resolv_conf=conf)
    await heir.setup()
    try:
        assert await lists.reach(box, (PUBLIC, PORT), ("other.test", PORT)) == [True, True]
        assert await lists.reach(box, ("www.wild.test", PORT)) == [False]
        table = ["nft", "list", "table", "inet", lists.host.names.table]
        await run("nft", "delete", "table", "inet", lists.host.names.table)
        await heir.close()
        await heir.setup()
        assert await lists.reach(box, ("allowed.test", PORT), ("wild.test", PORT)) == [True, False]
        assert "names" in await run(*table)
    finally:
        await heir.close()


async def test_nothing_of_a_list_is_left_for_the_next_box(lists: ListHost) -> None:
    first = await lists.host.box(egress="allowed.test")
    assert await lists.reach(first, ("allowed.test", PORT)) == [True]
    address = lists.host.address(first)
    await lists.host.backend.destroy(first)
    second = await lists.host.box(egress="other.test")
    assert lists.host.address(second) == address
    assert await lists.reach(second, (PUBLIC, PORT), ("allowed.test", PORT)) == [False, False]
