"""What the boxes' own resolver says to which question."""

from __future__ import annotations

from ipaddress import IPv4Address

import dns.edns
import dns.flags
import dns.message
import dns.rcode
import dns.rdatatype
import dns.rrset
import pytest
from hypothesis import given
from hypothesis import strategies as st

from boxd.backends.network import answers


def asked(name: str = "a.test.", kind: str = "A", *, edns: bool = False) -> dns.message.Message:
    """A question as it arrives."""
    query = answers.parse_query(dns.message.make_query(name, kind, use_edns=edns).to_wire())
    assert query is not None
    return query


def upstream(
    query: dns.message.Message, *records: tuple[str, int, str, str]
) -> dns.message.Message:
    """An answer of the host's resolver: (name, ttl, type, text) of each record."""
    reply = dns.message.make_response(query)
    for name, ttl, kind, text in records:
        reply.answer.append(dns.rrset.from_text_list(name, ttl, "IN", kind, text.split()))
    return dns.message.from_wire(reply.to_wire())


def told(answer: answers.Answer) -> list[str]:
    """The records of an answer, as a resolver in a box reads them."""
    reply = dns.message.from_wire(answer.reply.to_wire())
    return [line for rrset in reply.answer for line in rrset.to_text().splitlines()]


def test_addresses_are_told_with_their_aliases() -> None:
    query = asked()
    answer = answers.answered(
        query,
        upstream(
            query, ("a.test.", 90, "CNAME", "b.test."), ("b.test.", 60, "A", "9.9.9.9 1.1.1.1")
        ),
    )
    assert sorted(told(answer)) == [  # addresses of one name go out in any order
        "a.test. 60 IN CNAME b.test.",
        "b.test. 60 IN A 1.1.1.1",
        "b.test. 60 IN A 9.9.9.9",
    ]
    assert set(answer.addresses) == {IPv4Address("9.9.9.9"), IPv4Address("1.1.1.1")}
    assert answer.ttl == 60
    assert answer.reply.id == query.id


def test_what_no_box_reaches_is_not_told() -> None:
    query = asked()
    answer = answers.answered(query, upstream(query, ("a.test.", 60, "A", "10.0.0.1 9.9.9.9")))
    assert told(answer) == ["a.test. 60 IN A 9.9.9.9"]
    rebound = answers.answered(query, upstream(query, ("a.test.", 60, "A", "169.254.169.254")))
    assert (told(rebound), rebound.addresses) == ([], ())
    assert rebound.reply.rcode() == dns.rcode.NOERROR


def test_records_of_other_names_are_not_told() -> None:
    query = asked()
    answer = answers.answered(query, upstream(query, ("evil.test.", 60, "A", "9.9.9.9")))
    assert (told(answer), answer.addresses) == ([], ())


def test_answers_are_bounded() -> None:
    query = asked()
    many = " ".join(f"9.9.{n}.1" for n in range(100))
    answer = answers.answered(query, upstream(query, ("a.test.", 10**6, "A", many)))
    assert (len(told(answer)), answer.ttl) == (answers.MAX_ADDRESSES, answers.MAX_TTL)


def test_a_name_that_does_not_exist() -> None:
    query = asked()
    missing = dns.message.make_response(query)
    missing.set_rcode(dns.rcode.NXDOMAIN)
    assert answers.answered(query, missing).reply.rcode() == dns.rcode.NXDOMAIN


def test_an_endless_chain_is_a_failure() -> None:
    query = asked()
    chain = [(f"{'a' * n}.test.", 60, "CNAME", f"{'a' * (n + 1)}.test.") for n in range(1, 40)]
    assert answers.answered(query, upstream(query, *chain)).reply.rcode() == dns.rcode.SERVFAIL


def test_a_refusal_says_why_to_who_understands() -> None:
    plain = answers.refused(asked(), dns.rcode.NXDOMAIN, "not listed").reply
    assert (plain.rcode(), plain.edns) == (dns.rcode.NXDOMAIN, -1)
    explained = answers.refused(asked(edns=True), dns.rcode.NXDOMAIN, "not listed").reply
    read = dns.message.from_wire(explained.to_wire())
    option = read.options[0]
    assert isinstance(option, dns.edns.EDEOption)
    assert (option.code, option.text) == (dns.edns.EDECode.PROHIBITED, "not listed")


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m.flags.__or__(dns.flags.QR),
        lambda m: m.flags.__or__(4 << 11),
        lambda m: m.question.append(m.question[0].copy()) or m.flags,
        lambda m: m.question.clear() or m.flags,
    ],
)
def test_what_is_no_question_gets_no_answer(change: object) -> None:
    message = dns.message.make_query("a.test.", "A")
    assert callable(change)
    message.flags = change(message)
    assert answers.parse_query(message.to_wire()) is None


def test_other_classes_get_no_answer() -> None:
    assert answers.parse_query(dns.message.make_query("a.test.", "TXT", "CH").to_wire()) is None


@given(st.binary(max_size=200))
def test_any_bytes_are_survived(wire: bytes) -> None:
    query = answers.parse_query(wire)
    assert query is None or answers.asked_name(query).isascii()


def test_names_are_compared_without_case() -> None:
    assert answers.asked_name(asked("WWW.Example.ORG.")) == "www.example.org"
    assert answers.asked_name(asked(".")) in ("", ".")
    assert answers.asks_for_address(asked())
    assert not answers.asks_for_address(asked(kind="AAAA"))


def test_nothing_but_the_name_is_asked_upstream() -> None:
    query = asked("A.test.", "A", edns=True)
    forwarded = answers.upstream_query(query)
    assert forwarded.question[0].to_text() == "A.test. IN A"
    assert (forwarded.edns, forwarded.additional) == (-1, [])


def test_a_datagram_takes_so_much_and_no_more() -> None:
    query = asked()
    many = " ".join(f"9.9.{n}.1" for n in range(100))
    reply = answers.answered(query, upstream(query, ("a.test.", 60, "A", many))).reply
    cut = answers.by_datagram(query, reply)
    assert len(cut) <= answers.PLAIN_SIZE
    assert dns.message.from_wire(cut).flags & dns.flags.TC
    whole = answers.by_datagram(asked(edns=True), reply)
    assert not dns.message.from_wire(whole).flags & dns.flags.TC
