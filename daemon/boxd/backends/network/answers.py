"""Builds the answers of the resolver: refusals, and addresses of listed names. Pure functions.

Only addresses (type A) are returned. Boxes have no IPv6, and other record types are of no use for a
list. A query for another type learns that the name exists, but has no such record. The answers omit
addresses that no box may reach, so a name that is rebound to a private address leads nowhere.
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

from boxd.backends.network.egress import reachable

if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_TTL = 3600
"""Maximum TTL of an answer, in seconds."""
PLAIN_SIZE = 512
MAX_SIZE = 1232
"""Maximum size of a datagram answer in bytes, without and with EDNS; it fits every path MTU."""
MAX_ADDRESSES = 32
"""Maximum number of addresses in one answer; others are omitted."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A reply to a box, and the addresses that must be open before it is sent. `ttl` in seconds."""

    reply: dns.message.Message
    addresses: tuple[IPv4Address, ...] = ()
    ttl: int = 0


def parse_query(wire: bytes) -> dns.message.Message | None:
    """Parse a query with one question. Return None for anything else, which gets no answer."""
    try:
        query = dns.message.from_wire(wire)
    except (dns.exception.DNSException, ValueError):
        return None
    is_question = query.opcode() == dns.opcode.QUERY and not query.flags & dns.flags.QR
    if not is_question or len(query.question) != 1:
        return None
    return query if query.question[0].rdclass == dns.rdataclass.IN else None


def asked_name(query: dns.message.Message) -> str:
    """Return the queried name, in lower case, without a final dot."""
    return query.question[0].name.to_text(omit_final_dot=True).lower()


def asks_for_address(query: dns.message.Message) -> bool:
    """Return whether the query is for an IPv4 address."""
    return query.question[0].rdtype == dns.rdatatype.A


def refused(query: dns.message.Message, code: dns.rcode.Rcode, why: str = "") -> Answer:
    """Return an answer without records. Clients with EDNS get the reason `why`."""
    reply = dns.message.make_response(query, recursion_available=True, our_payload=MAX_SIZE)
    reply.set_rcode(code)
    if why and query.edns >= 0:
        reply.use_edns(options=[dns.edns.EDEOption(dns.edns.EDECode.PROHIBITED, why)])
    return Answer(reply)


def upstream_query(query: dns.message.Message) -> dns.message.Message:
    """Return the query for the host's resolvers. It contains only the name from the box's query."""
    return dns.message.make_query(query.question[0].name, dns.rdatatype.A)


def answered(query: dns.message.Message, upstream: dns.message.Message) -> Answer:
    """Return the answer to a query from the reply of a host's resolver."""
    if upstream.rcode() == dns.rcode.NXDOMAIN:
        return refused(query, dns.rcode.NXDOMAIN)
    if not isinstance(upstream, dns.message.QueryMessage):
        return refused(query, dns.rcode.SERVFAIL)
    try:
        chain = upstream.resolve_chaining()
    except dns.exception.DNSException:
        return refused(query, dns.rcode.SERVFAIL)
    addresses = reachable(_addresses(chain.answer or ()))[:MAX_ADDRESSES]
    ttl = min(chain.minimum_ttl, MAX_TTL)
    reply = dns.message.make_response(query, recursion_available=True, our_payload=MAX_SIZE)
    if addresses:
        for alias in chain.cnames:
            reply.answer.append(dns.rrset.from_rdata_list(alias.name, ttl, list(alias)))
        texts = [str(address) for address in addresses]
        reply.answer.append(dns.rrset.from_text_list(chain.canonical_name, ttl, "IN", "A", texts))
    return Answer(reply, tuple(addresses), ttl)


def by_datagram(query: dns.message.Message, reply: dns.message.Message) -> bytes:
    """Truncate a reply to the client's datagram size; the client then retries over TCP."""
    size = min(max(query.payload, PLAIN_SIZE), MAX_SIZE) if query.edns >= 0 else PLAIN_SIZE
    return reply.to_wire(max_size=size, prefer_truncation=True)


def _addresses(records: Iterable[object]) -> list[IPv4Address]:
    return [IPv4Address(str(record)) for record in records]
