"""Choice of networks and addresses."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from boxd.backends.network import subnets
from boxd.errors import Unavailable

EVERYTHING = [IPv4Network("10.0.0.0/8"), IPv4Network("172.16.0.0/12")]


@given(st.from_regex(r"[0-9a-f]{6}", fullmatch=True))
def test_the_choice_is_private_and_free(instance: str) -> None:
    taken = [IPv4Network("10.0.0.0/9"), IPv4Network("172.16.3.0/24")]
    chosen = subnets.choose(instance, taken)
    assert chosen.prefixlen == 16
    assert any(chosen.subnet_of(network) for network in EVERYTHING)
    assert not any(chosen.overlaps(network) for network in taken)


def test_the_choice_is_steady_and_differs_among_installations() -> None:
    assert (
        subnets.choose("00000a", []) == subnets.choose("00000a", []) == IPv4Network("10.10.0.0/16")
    )
    assert subnets.choose("00000b", []) != subnets.choose("00000a", [])


def test_the_last_free_one_is_found() -> None:
    taken = [
        n
        for n in IPv4Network("10.0.0.0/8").subnets(new_prefix=16)
        if n.network_address.packed[1] != 3
    ]
    chosen = subnets.choose("ffffff", [*taken, EVERYTHING[1]])
    assert chosen == IPv4Network("10.3.0.0/16")


def test_when_all_is_taken_it_says_so() -> None:
    with pytest.raises(Unavailable, match="no private /16"):
        subnets.choose("000000", EVERYTHING)


def test_addresses_of_slots_do_not_overlap() -> None:
    network = IPv4Network("10.7.0.0/16")
    assert subnets.address(network, 0).box == IPv4Address("10.7.0.2")
    assert subnets.address(network, 64).gateway == IPv4Address("10.7.1.1")
    last = subnets.address(network, subnets.SLOTS - 1)
    assert last.gateway in network
    own = subnets.resolver(network)
    assert own == IPv4Address("10.7.255.254")
    assert last.box < own - 1, "the resolver's address is no box's, and its link is nobody's"


def test_free_slots() -> None:
    assert subnets.free_slot(set()) == 0
    assert subnets.free_slot({0, 1, 3}) == 2
    with pytest.raises(Unavailable, match="16383 boxes"):
        subnets.free_slot(set(range(subnets.SLOTS)))
