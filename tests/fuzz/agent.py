"""An agent that dials the daemon as any other, has its box's identity, and then talks nonsense."""

from __future__ import annotations

import socket
from contextlib import suppress
from random import Random
from typing import TYPE_CHECKING

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from box_guest import protocol
from tests.fuzz.messages import in_between, on_channel
from tests.fuzz.mutations import bent, pieces, spoilt
from tests.fuzz.wire import (
    ECDH_INIT,
    ECDH_REPLY,
    KEXINIT,
    NEWKEYS,
    PATIENCE_S,
    STRICT_SERVER,
    VERSION,
    Direction,
    GoneError,
    Wire,
    digest,
    framed,
    kexinit,
    mpint,
    number,
    string,
    strings,
)
from tests.harness.agents.impostor import GREETING

if TYPE_CHECKING:
    from pathlib import Path

    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

SILENCE_S = 0.15
"""What is not said by then is not said: a spoilt answer may be waited for in vain."""
ANSWERS = 6
"""So much the daemon says surely: to log in, for its own channel, and for one command."""
OPENS = (
    *(b"session", b"forwarded-tcpip", b"forwarded-streamlocal@openssh.com"),
    *(b"auth-agent@openssh.com", b"x11", b"nonsense"),
)
LINES = (
    {"type": "activity", "shells": 3},
    {"type": "life", "id": 1},
    {"type": "pin", "id": 2, "for_s": 60, "why": "x"},
    {"type": "reply", "id": 1, "ok": True, "result": {}},
    {"type": "suspending"},
    {"type": "nonsense", "text": "y" * 1000},
)


class Agent(Wire):
    """The server's end of a tunnel. Its channels have the numbers that the daemon gave them."""

    def answer_keys(self, random: Random) -> None:
        """From the first byte to keys; now and then something of it is spoilt. Raises GoneError."""
        spoils = random.random() < 0.3
        self.patience(SILENCE_S if spoils else PATIENCE_S)
        self.offer = kexinit(bytes(16), (STRICT_SERVER,))
        hello = VERSION + b"\r\n", framed(bent(random, self.offer) if spoils else self.offer)
        self.write(b"".join(hello))
        version = self.read_line()
        theirs = self.receive_any(KEXINIT)
        (point,) = strings(self.receive_any(ECDH_INIT)[1:])
        secret = X25519PrivateKey.generate()
        ours = secret.public_key().public_bytes_raw()
        shared = mpint(secret.exchange(X25519PublicKey.from_public_bytes(point)))
        blob = string(b"ssh-ed25519") + string(self.key.public_key().public_bytes_raw())
        session = digest((version, VERSION, theirs, self.offer, blob, point, ours), shared)
        proof = string(b"ssh-ed25519") + string(self.key.sign(session))
        reply = bytes([ECDH_REPLY]) + string(blob) + string(ours) + string(proof)
        packets = [reply, bytes([NEWKEYS])]
        if spoils:
            packets = spoilt(random, packets)
        for piece in pieces(random, b"".join(map(framed, packets))):
            self.write(piece)
        self.receive_any(NEWKEYS)
        self.sealing = Direction(shared, session, b"BD")
        self.unsealing = Direction(shared, session, b"AC")

    def talk(self, random: Random) -> None:
        """Answers what the daemon says, well or not, and then has its own say. Raises GoneError."""
        share = random.choice((0.0, 0.0, 0.1, 0.4))
        self.patience(SILENCE_S if share else PATIENCE_S)
        with suppress(TimeoutError):
            for _ in range(random.randrange(ANSWERS + 1)):
                for packet in _answers(self.receive()):
                    said = bent(random, packet) if random.random() < share else packet
                    self.write(self.sealed(said))
        for packet in spoilt(random, [_say(random) for _ in range(random.randint(1, 8))]):
            self.write(self.sealed(packet))


def _answers(packet: bytes) -> list[bytes]:
    """What a proper agent says to it."""
    where = packet[1:5]
    match packet[0]:
        case 5:
            return [b"\x06" + string(b"ssh-userauth")]
        case 50:
            return [b"\x34"]
        case 80:
            return [b"\x52"]
        case 90:
            theirs = packet[5 + len(b"session") :][:4]
            return [b"\x5b" + theirs * 2 + number(1 << 20) + number(1 << 15)]
        case 98 if b"subsystem" in packet:
            return [b"\x63" + where, b"\x5e" + where + string(GREETING)]
        case 98 if b"exec" in packet or b"shell" in packet:
            status = b"\x62" + where + string(b"exit-status") + b"\0" + number(3)
            output = b"\x5e" + where + string(b"output")
            return [b"\x63" + where, output, status, b"\x60" + where, b"\x61" + where]
        case _:
            return []


def _say(random: Random) -> bytes:
    """What an agent may say without being asked, or what none says."""
    channel = random.choice((0, 0, 0, 1, 7))
    match random.randrange(4):
        case 0:
            return in_between(random)
        case 1:
            kind = string(random.choice(OPENS))
            place = string(b"127.0.0.1") + number(22)
            return b"\x5a" + kind + number(9) + number(1 << 20) + number(1 << 15) + place * 2
        case 2:
            line = protocol.encode(random.choice(LINES))
            spoils = random.random() < 0.3
            return b"\x5e" + number(channel) + string(bent(random, line) if spoils else line)
        case _:
            return random.choice(on_channel(random, "cli", channel))


def run_agent(place: Path, key: Ed25519PrivateKey, seed: int) -> None:
    """A tunnel from its first byte to its end. Raises TimeoutError when the daemon keeps it."""
    random = Random(seed)
    with socket.socket(socket.AF_UNIX) as connecting:
        connecting.settimeout(PATIENCE_S)
        connecting.connect(str(place))
        agent = Agent(connecting, key)
        try:
            agent.answer_keys(random)
            agent.talk(random)
            if random.random() < 0.1:
                return
            agent.end_writing()
        except GoneError:
            pass  # as it may at any word
        except TimeoutError:
            agent.end_writing()  # a spoilt beginning has no end of its own
        agent.patience(PATIENCE_S)
        agent.wait_for_end()
