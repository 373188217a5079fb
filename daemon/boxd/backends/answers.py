"""What the boxes' own resolver says: refusals, and addresses of listed names. Pure.

Only addresses (type A) are told: boxes have no IPv6, and records of other types lead nowhere that a
list opens; for these a listed name exists and has no such record. Addresses that no box reaches are
left out, so that a name that is rebound to a private address leads nowhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Address
from typing import TYPE_CHECKING

import dns.edns
import dns.exception
import dns.flags
import dns.message
import dns.opcode
import dns.rcode
import dns.rdataclass
import dns.rdatatype
import dns.rrset

from boxd.backends.egress import reachable

if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_TTL = 3600
"""Seconds for which a box may keep an answer at most."""
PLAIN_SIZE = 512
MAX_SIZE = 1232
"""Bytes of an answer by datagram, without and with EDNS: fits every path."""
MAX_ADDRESSES = 32
"""Addresses that one answer tells; the others are left out."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a box is told, and the addresses that must be open before; `ttl` in seconds."""

    reply: dns.message.Message
    addresses: tuple[IPv4Address, ...] = ()
    ttl: int = 0


def parse_query(wire: bytes) -> dns.message.Message | None:
    """A message that asks one thing; None for anything else, which gets no answer at all."""
    try:
        query = dns.message.from_wire(wire)
    except (dns.exception.DNSException, ValueError):
        return None
    is_question = query.opcode() == dns.opcode.QUERY and not query.flags & dns.flags.QR
    if not is_question or len(query.question) != 1:
        return None
    return query if query.question[0].rdclass == dns.rdataclass.IN else None


def asked_name(query: dns.message.Message) -> str:
    """The name that is asked for, in lower case without a dot at its end."""
    return query.question[0].name.to_text(omit_final_dot=True).lower()


def asks_for_address(query: dns.message.Message) -> bool:
    """Whether it is an IPv4 address that is wanted."""
    return query.question[0].rdtype == dns.rdatatype.A


def refused(query: dns.message.Message, code: dns.rcode.Rcode, why: str = "") -> Answer:
    """An answer without records; `why` is for people who ask with EDNS."""
    reply = dns.message.make_response(query, recursion_available=True, our_payload=MAX_SIZE)
    reply.set_rcode(code)
    if why and query.edns >= 0:
        reply.use_edns(options=[dns.edns.EDEOption(dns.edns.EDECode.PROHIBITED, why)])
    return Answer(reply)


def upstream_query(query: dns.message.Message) -> dns.message.Message:
    """The question as it is asked of the host's resolvers: nothing else of the box's message."""
    return dns.message.make_query(query.question[0].name, dns.rdatatype.A)


def answered(query: dns.message.Message, upstream: dns.message.Message) -> Answer:
    """What to tell of the answer of a host's resolver to the same question."""
    if upstream.rcode() == dns.rcode.NXDOMAIN:
        return refused(query, dns.rcode.NXDOMAIN)
    if not isinstance(upstream, dns.message.QueryMessage):
        return refused(query, dns.rcode.SERVFAIL)
    try:
        chain = upstream.resolve_chaining()
    except dns.exception.DNSException:
        return refused(query, dns.rcode.SERVFAIL)
    found = reachable(_addresses(chain.answer or ()))[:MAX_ADDRESSES]
    ttl = min(chain.minimum_ttl, MAX_TTL)
    reply = dns.message.make_response(query, recursion_available=True, our_payload=MAX_SIZE)
    if found:
        for alias in chain.cnames:
            reply.answer.append(dns.rrset.from_rdata_list(alias.name, ttl, list(alias)))
        texts = [str(address) for address in found]
        reply.answer.append(dns.rrset.from_text_list(chain.canonical_name, ttl, "IN", "A", texts))
    return Answer(reply, tuple(found), ttl)


def by_datagram(query: dns.message.Message, reply: dns.message.Message) -> bytes:
    """Cut to what the asker takes, and marked so; it asks again over TCP then."""
    size = min(max(query.payload, PLAIN_SIZE), MAX_SIZE) if query.edns >= 0 else PLAIN_SIZE
    return reply.to_wire(max_size=size, prefer_truncation=True)


def _addresses(records: Iterable[object]) -> list[IPv4Address]:
    return [IPv4Address(str(record)) for record in records]
