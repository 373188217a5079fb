"""Egress policies: what is a policy, its canonical text, what a list means."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from boxd.backends.network.egress import (
    DENIED,
    MAX_ENTRIES,
    NameEntry,
    is_denied,
    parse_egress,
    reachable,
)
from boxd.errors import BadRequest

_labels = st.from_regex(r"[a-z]([a-z0-9-]{0,5}[a-z0-9])?", fullmatch=True)
_names = st.builds(
    lambda star, labels: star + ".".join(labels),
    st.sampled_from(["", "*."]),
    st.lists(_labels, min_size=2, max_size=4),
)
_ranges = st.builds(
    lambda number, bits: str(IPv4Network((number >> (32 - bits) << (32 - bits), bits))),
    st.integers(0, 2**32 - 1),
    st.integers(1, 32),
).filter(lambda text: not any(IPv4Network(text).subnet_of(one) for one in DENIED))
_entries = st.builds(
    lambda target, port: target if port is None else f"{target}:{port}",
    _names | _ranges,
    st.none() | st.integers(1, 65535),
)


@given(st.lists(_entries, min_size=1, max_size=8))
def test_the_canonical_text_means_the_same(entries: list[str]) -> None:
    policy = parse_egress(",".join(entries))
    assert parse_egress(str(policy)) == policy
    assert parse_egress(",".join(reversed(entries))) == policy
    assert policy.is_list


@pytest.mark.parametrize("word", ["all", "none"])
def test_words_stand_alone(word: str) -> None:
    policy = parse_egress(word)
    assert (str(policy), policy.is_list) == (word, False)
    assert policy.ports_of("example.org") == frozenset()
    with pytest.raises(BadRequest, match=f"egress {word} must be the whole policy"):
        parse_egress(f"example.org,{word}")


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("PyPI.org", "pypi.org"),
        ("pypi.org.", "pypi.org"),
        (" b.test , a.test,b.test", "a.test,b.test"),
        ("a.test:443,a.test", "a.test"),
        ("a.test:443,a.test:80", "a.test:80,a.test:443"),
        ("198.51.100.7/32,198.51.100.0/24:80", "198.51.100.0/24:80,198.51.100.7"),
        ("203.0.113.9,*.a.test", "*.a.test,203.0.113.9"),
        ("_srv.a-b.test", "_srv.a-b.test"),
        ("xn--bcher-kva.example", "xn--bcher-kva.example"),
        ("0.0.0.0/0", "0.0.0.0/0"),
    ],
)
def test_canonical_text(text: str, canonical: str) -> None:
    assert str(parse_egress(text)) == canonical


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "an empty entry"),
        ("a.test,,b.test", "an empty entry"),
        (":443", "an empty entry"),
        ("localhost", "needs a domain"),
        ("*.com", "needs a domain"),
        ("*", "not a name"),
        ("a.*.test", "not a name"),
        ("*a.test", "not a name"),
        ("-a.test", "not a name"),
        ("a..test", "not a name"),
        ("a b.test", "not a name"),
        ("bücher.example", "xn-- form"),
        ("\u212aa.test", "xn-- form"),
        ("a" * 64 + ".test", "not a name"),
        (".".join(["a" * 60] * 5), "not a name"),
        ("http://a.test/", "a port is a number"),
        ("a.test:0", "a port is a number"),
        ("a.test:65536", "a port is a number"),
        ("a.test:", "a port is a number"),
        ("a.test:http", "a port is a number"),
        ("a.test:080", "a port is a number"),
        ("a.test:٤", "a port is a number"),
        ("10.0.0.1", "boxes cannot reach"),
        ("10.1.0.0/16", "boxes cannot reach"),
        ("169.254.169.254:80", "boxes cannot reach"),
        ("127.0.0.1", "boxes cannot reach"),
        ("100.64.0.0/10", "boxes cannot reach"),
        ("224.0.0.0/4", "boxes cannot reach"),
        ("192.0.0.53", "boxes cannot reach"),
        ("198.51.100.7/24", "is 198.51.100.0/24; write that"),
        ("198.51.100.0/33", "not an IPv4 address"),
        ("3325256814", "not an IPv4 address"),
        ("0xc63364d5", "not an IPv4 address"),
        ("198.51.25600", "not an IPv4 address"),
        ("0306.063.0144.0325", "not an IPv4 address"),
        ("a.test/24", "not an IPv4 address"),
        ("1.2.3.4.5", "not an IPv4 address"),
        ("2001:db8::/32", "no IPv6"),
        ("::ffff:198.51.100.1", "no IPv6"),
        ("64:ff9b::c633:64d5", "no IPv6"),
        ("[2001:db8::1]:443", "no IPv6"),
    ],
)
def test_refused(text: str, why: str) -> None:
    with pytest.raises(BadRequest, match=why):
        parse_egress(text)


def test_a_list_has_an_end() -> None:
    names = [f"a{n}.test" for n in range(MAX_ENTRIES)]
    parse_egress(",".join(names))
    with pytest.raises(BadRequest, match=f"at most {MAX_ENTRIES} entries, not {MAX_ENTRIES + 1}"):
        parse_egress(",".join([*names, "one.too.many"]))


def test_an_error_shows_what_was_written_and_escapes_it() -> None:
    with pytest.raises(BadRequest) as refused:
        parse_egress("a.test\x1b[31m")
    assert "\x1b" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "ports"),
    [
        ("a.test", {443, 80}),
        ("b.a.test", {None}),
        ("c.b.a.test", {None}),
        ("any.test", {None}),
        ("a.test.evil", set()),
        ("evila.test", set()),
        ("test", set()),
        ("", set()),
    ],
)
def test_ports_of_names(name: str, ports: set[int | None]) -> None:
    policy = parse_egress("a.test:443,a.test:80,*.a.test,any.test,any.test:22,b.a.test:22")
    assert policy.ports_of(name) == ports


def test_networks_do_not_overlap() -> None:
    policy = parse_egress("198.51.100.0/24,198.51.100.7,203.0.113.0/25,203.0.113.128/25:80,9.9.9.9")
    assert policy.networks(None) == [
        IPv4Network("9.9.9.9/32"),
        IPv4Network("198.51.100.0/24"),
        IPv4Network("203.0.113.0/25"),
    ]
    assert (policy.range_ports(), policy.networks(80)) == ([80], [IPv4Network("203.0.113.128/25")])


def test_names_with_ports_are_no_ranges() -> None:
    policy = parse_egress("a.test:443")
    assert (policy.range_ports(), policy.networks(None)) == ([], [])
    assert policy.names == (NameEntry("a.test", 443),)


def test_what_no_box_reaches_is_left_out() -> None:
    told = ["169.254.169.254", "198.51.100.1", "10.0.0.1", "198.51.100.1", "127.0.0.1"]
    assert reachable(map(IPv4Address, told)) == [IPv4Address("198.51.100.1")]
    assert is_denied(IPv4Address("127.0.0.1"))
    assert not is_denied(IPv4Address("223.255.255.255"))
