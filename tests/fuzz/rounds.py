"""Connections that say nonsense: a seed is a connection, from its first byte to its end."""

from __future__ import annotations

import asyncio
import socket
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import TYPE_CHECKING, TypeAlias

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tests.fuzz.harmless import BOX, TEXT_ONLY
from tests.fuzz.messages import auth_requests, connection, in_between, on_channel, session
from tests.fuzz.mutations import WORDS, bent, cut, flipped, pieces, spoilt
from tests.fuzz.wire import NEWKEYS, PATIENCE_S, VERSION, GoneError, Wire, framed, kexinit, string

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    Round: TypeAlias = Callable[[Random, Wire], None]

AT_ONCE = 40
OTHERS = (
    b"GET / HTTP/1.1\r\nHost: box\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"SSH-1.5-old\n",
    b"SSH-2.0-\r\n",
    b"SSH-2.0-" + b"x" * 9000 + b"\r\n",
    b"SSH-2.0-\xff\xfe\r\n",
    b"\0" * 9000,
    b"\n" * 3000,
    b"",
)
"""First words of who is mistaken in the door."""


def before_keys(random: Random, wire: Wire) -> None:
    """A stranger who never gets as far as a key exchange. Raises GoneError."""
    kind = random.random()
    if kind < 0.1:
        said = random.choice(OTHERS) + random.randbytes(random.choice((0, 60, 3000)))
    elif kind < 0.2:
        said = bent(random, VERSION + b"\r\n") + framed(kexinit(bytes(16)))
    elif kind < 0.4:
        said = VERSION + b"\r\n" + b"".join(_with_lengths(random) for _ in range(2))
    else:
        said = _beginning(random)
    for piece in pieces(random, said):
        wire.write(piece)


def _beginning(random: Random) -> bytes:
    """What a client says first, with something wrong in its packets or in how they are framed."""
    reply = bytes([30]) + string(random.randbytes(32))
    packets = [
        kexinit(random.randbytes(16)),
        reply,
        bytes([NEWKEYS]),
        b"\5" + string(b"ssh-userauth"),
    ]
    packets = spoilt(random, packets)
    if random.random() < 0.2:
        packets.insert(random.randrange(len(packets) + 1), in_between(random))
    frames = [framed(one) for one in packets]
    if random.random() < 0.3:
        at = random.randrange(len(frames)) if frames else 0
        frames[at : at + 1] = [
            random.choice((flipped, cut))(random, one) for one in frames[at : at + 1]
        ]
    return VERSION + b"\r\n" + b"".join(frames)


def _with_lengths(random: Random) -> bytes:
    """A packet with some length of itself, and some length of its padding."""
    size = random.choice((*WORDS, 12, 20, 35000, 262144))
    body = bytes([random.randrange(256)]) + kexinit(bytes(16))
    return size.to_bytes(4, "big") + body + random.randbytes(random.randrange(16))


def unproved(random: Random, wire: Wire) -> None:
    """Somebody with keys for the connection who proves none of their own properly."""
    wire.exchange_keys()
    wire.user = random.choice(sorted(TEXT_ONLY))
    for packet in spoilt(random, auth_requests(random, wire.signed(wire.user))):
        if random.random() < 0.05:
            packet = in_between(random)
        sealed = wire.sealed(packet)
        wire.write(flipped(random, sealed) if random.random() < 0.02 else sealed)


def proved(random: Random, wire: Wire) -> None:
    """Somebody who is let in, and talks nonsense to what is no box."""
    wire.exchange_keys()
    if wire.log_in(random.choice((*sorted(TEXT_ONLY), "jump"))):
        _channels(random, wire)


def in_a_box(random: Random, wire: Wire) -> None:
    """Somebody with a box, the same for all."""
    wire.key = key_of(0)
    wire.exchange_keys()
    if not wire.log_in(BOX):
        raise RuntimeError("the owner of the box is not let in")
    _channels(random, wire)


def _channels(random: Random, wire: Wire) -> None:
    channels = 0
    for _ in range(random.choice((1, 1, 2, 3))):
        asked = session(random) if random.random() < 0.7 else connection(random, wire.user)
        if random.random() < 0.2:
            wire.send(bent(random, asked))
            continue
        channels += wire.opened(asked)
        channel = channels - 1 if random.random() < 0.9 else random.randrange(5)
        said = on_channel(random, wire.user, max(channel, 0))
        if random.random() < 0.3:
            said.insert(random.randrange(len(said)), in_between(random))
        if random.random() < 0.05:
            said.insert(random.randrange(len(said)), kexinit(bytes(16)))
        for packet in spoilt(random, said):
            wire.send(packet)


def key_of(number: int) -> Ed25519PrivateKey:
    """A user's key."""
    return Ed25519PrivateKey.from_private_bytes(number.to_bytes(32, "big"))


def connected(port: int, key: Ed25519PrivateKey) -> Wire:
    """A connection to a front door of this machine, before its first byte."""
    return Wire(socket.create_connection(("127.0.0.1", port), PATIENCE_S), key)


def run_round(kind: Round, seed: int, port: int) -> None:
    """A connection. Raises TimeoutError when the other side does not end it when we do."""
    random = Random(f"{kind.__name__} {seed}")
    wire = connected(port, key_of(seed + 1))
    try:
        try:
            kind(random, wire)
            if (leaving := random.random()) < 0.1:
                wire.reset()
                return
            if leaving < 0.2:
                return
            wire.end_writing()
        except GoneError:
            pass  # as it may at any word
        wire.wait_for_end()
    finally:
        wire.close()


async def run_rounds(kind: Round, seeds: Iterable[int], port: int) -> dict[int, BaseException]:
    """Connections, many at once: those that failed, by seed."""
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        started = {seed: loop.run_in_executor(pool, run_round, kind, seed, port) for seed in seeds}
        await asyncio.wait(started.values())
    failed = {seed: one.exception() for seed, one in started.items()}
    return {seed: error for seed, error in failed.items() if error is not None}
