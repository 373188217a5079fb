"""Ways to spoil bytes and sequences of packets. Each is decided by the generator that it is given,
so a seed is a case."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from random import Random

WORDS = (0, 1, 2, 0x7F, 0xFF, 0xFFFF, 1 << 15, 1 << 18, (1 << 31) - 1, 1 << 31, (1 << 32) - 1)
"""Numbers where programs err, as lengths, windows or channels."""
KINDS = (
    *(0, 1, 2, 3, 4, 5, 6, 7, 8, 20, 21, 30, 31, 34, 50, 51, 52, 53, 60, 61, 63, 79, 80, 81, 82),
    *(90, 91, 92, 93, 94, 95, 96, 97, 98, 99, 100, 101, 127, 128, 192, 255),
)
"""Kinds of packets, those that there are and some that there are not."""


def flipped(random: Random, data: bytes) -> bytes:
    """Some bits are others."""
    spoilt = bytearray(data)
    for _ in range(random.randint(1, 6) if spoilt else 0):
        spoilt[random.randrange(len(spoilt))] ^= 1 << random.randrange(8)
    return bytes(spoilt)


def cut(random: Random, data: bytes) -> bytes:
    """The end is missing."""
    return data[: random.randrange(len(data) + 1)]


def longer(random: Random, data: bytes) -> bytes:
    """Something stands behind it."""
    return data + random.randbytes(random.choice((1, 4, 7, 300, 3000)))


def worded(random: Random, data: bytes) -> bytes:
    """Four bytes are a number where programs err; often the length of a field."""
    if len(data) < 4:
        return data
    at = random.randrange(len(data) - 3)
    return data[:at] + random.choice(WORDS).to_bytes(4, "big") + data[at + 4 :]


def retyped(random: Random, data: bytes) -> bytes:
    """It is another kind of packet."""
    return bytes([random.choice(KINDS)]) + data[1:]


def doubled(random: Random, data: bytes) -> bytes:
    """A part of it stands there twice."""
    start = random.randrange(len(data) + 1)
    end = random.randint(start, len(data))
    return data[:end] + data[start:]


def replaced(random: Random, data: bytes) -> bytes:
    """Only the kind is left."""
    return data[:1] + random.randbytes(random.choice((0, 1, 5, 40, 2000, 33000)))


MUTATIONS: tuple[Callable[[Random, bytes], bytes], ...] = (
    flipped,
    cut,
    longer,
    worded,
    worded,
    retyped,
    doubled,
    replaced,
)


def bent(random: Random, data: bytes) -> bytes:
    """Spoilt in one way, or in two."""
    for _ in range(random.choice((1, 1, 1, 2))):
        data = random.choice(MUTATIONS)(random, data)
    return data


def disordered(random: Random, packets: list[bytes]) -> list[bytes]:
    """One is missing, one comes again, two change places, or one comes far too often."""
    packets = list(packets)
    at, other = random.randrange(len(packets)), random.randrange(len(packets))
    match random.randrange(4):
        case 0:
            del packets[at]
        case 1:
            packets.insert(other, packets[at])
        case 2:
            packets[at], packets[other] = packets[other], packets[at]
        case _:
            packets[at:at] = [packets[at]] * random.choice((3, 30, 70))
    return packets


def spoilt(random: Random, packets: list[bytes]) -> list[bytes]:
    """A sequence of which something is wrong; now and then nothing is."""
    if random.random() < 0.3:
        packets = disordered(random, packets)
    share = random.choice((0.0, 0.15, 0.4, 1.0))
    return [bent(random, one) if random.random() < share else one for one in packets]


def pieces(random: Random, data: bytes) -> Iterator[bytes]:
    """The same bytes, in one piece or split anywhere."""
    places = sorted(random.randrange(len(data) + 1) for _ in range(random.choice((0, 0, 1, 4))))
    start = 0
    for place in (*places, len(data)):
        if place > start:
            yield data[start:place]
            start = place
