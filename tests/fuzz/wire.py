"""One end of an SSH connection that sends whatever it is told, at any time.

A client of its own: one that follows the protocol would refuse to send most of what is of use here.
It knows one way of everything: curve25519-sha256, aes128-gcm@openssh.com, ed25519.
"""

from __future__ import annotations

import hashlib
import socket
import struct
import time
from typing import TYPE_CHECKING

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from tests.fuzz.harmless import TEXT_ONLY, harmless

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

PATIENCE_S = 30.0
"""How long the other side may take for anything; machines that run tests are busy."""
VERSION = b"SSH-2.0-Nonsense_1"
KEX = b"curve25519-sha256"
CIPHER = b"aes128-gcm@openssh.com"
STRICT_CLIENT, STRICT_SERVER = b"kex-strict-c-v00@openssh.com", b"kex-strict-s-v00@openssh.com"
KEXINIT, NEWKEYS, ECDH_INIT, ECDH_REPLY = 20, 21, 30, 31
SERVICE_REQUEST, AUTH_REQUEST, AUTH_FAILURE, AUTH_SUCCESS = 5, 50, 51, 52
OPEN, OPENED, NOT_OPENED = 90, 91, 92
_BLOCK = 16


class GoneError(Exception):
    """The other side has ended the connection."""


def string(value: bytes) -> bytes:
    """Length and bytes."""
    return struct.pack(">I", len(value)) + value


def number(value: int) -> bytes:
    """Four bytes."""
    return struct.pack(">I", value)


def kexinit(cookie: bytes, extra: Sequence[bytes] = (STRICT_CLIENT,)) -> bytes:
    """The one offer of either side."""
    lists = [b",".join((KEX, *extra)), b"ssh-ed25519", CIPHER, CIPHER]
    lists += [b"hmac-sha2-256-etm@openssh.com"] * 2 + [b"none"] * 2 + [b""] * 2
    return bytes([KEXINIT]) + cookie + b"".join(map(string, lists)) + bytes(5)


def framed(payload: bytes, block: int = 8, beside: int = 4) -> bytes:
    """A packet in the clear; `beside`: bytes of the length that count for the padding."""
    padding = block - (beside + 1 + len(payload)) % block
    padding += block if padding < 4 else 0
    return struct.pack(">IB", len(payload) + padding + 1, padding) + payload + bytes(padding)


class Wire:
    """The client's end of a connection."""

    def __init__(self, connected: socket.socket, key: Ed25519PrivateKey) -> None:
        self.key = key
        self.user = ""
        """As whom the other side knows us; "": it does not."""
        self._socket = connected
        self._input = b""
        self.sealing: Direction | None = None
        self.unsealing: Direction | None = None
        self._session = b""
        self.offer = kexinit(bytes(16))

    # --- bytes ---------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Sends bytes as they are. Raises GoneError."""
        try:
            self._socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise GoneError from error

    def send(self, payload: bytes) -> bool:
        """Sends a packet, and whether: what might do something in a box is not sent. Raises
        GoneError."""
        if self.user not in TEXT_ONLY and not harmless(self.user, payload):
            return False
        self.write(self.sealed(payload))
        return True

    def sealed(self, payload: bytes) -> bytes:
        """What `send` writes for a packet: it must be written next."""
        return framed(payload) if self.sealing is None else self.sealing.seal(payload)

    def receive(self) -> bytes:
        """The next packet. Raises GoneError."""
        if self.unsealing is None:
            size = struct.unpack(">I", self._read(4))[0]
            packet = self._read(size)
            return packet[1 : size - packet[0]]
        head = self._read(4)
        return self.unsealing.open(head, self._read(struct.unpack(">I", head)[0] + _BLOCK))

    def receive_any(self, *kinds: int) -> bytes:
        """The next packet of these kinds. Raises GoneError, and TimeoutError when none comes."""
        end = time.monotonic() + PATIENCE_S
        while (packet := self.receive())[0] not in kinds:
            # It asks from time to time whether we are alive.
            if time.monotonic() > end:
                raise TimeoutError(f"no packet of {kinds}")
        return packet

    def patience(self, seconds: float) -> None:
        """How long reading and writing wait from now on; then they raise TimeoutError."""
        self._socket.settimeout(seconds)

    def end_writing(self) -> None:
        """The input has ended."""
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError as error:
            raise GoneError from error

    def wait_for_end(self) -> None:
        """Reads until the other side has closed. Raises TimeoutError when it does not."""
        try:
            while self._socket.recv(1 << 16):
                pass
        except ConnectionResetError:
            pass

    def close(self) -> None:
        """Without a word."""
        self._socket.close()

    def reset(self) -> None:
        """Throws away also what the kernel holds for the other side."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._socket.close()

    # --- the protocol, as it should be -----------------------------------------------------

    def exchange_keys(self) -> None:
        """From the first byte to keys. Raises GoneError."""
        secret = X25519PrivateKey.generate()
        ours = secret.public_key().public_bytes_raw()
        hello = VERSION + b"\r\n" + framed(self.offer)
        self.write(hello + framed(bytes([ECDH_INIT]) + string(ours)))
        version = self.read_line()
        theirs = self.receive_any(KEXINIT)
        reply = self.receive_any(ECDH_REPLY)
        self.receive_any(NEWKEYS)
        host_key, point = strings(reply[1:])[:2]
        shared = mpint(secret.exchange(X25519PublicKey.from_public_bytes(point)))
        self._session = digest(
            (VERSION, version, self.offer, theirs, host_key, ours, point), shared
        )
        self.write(framed(bytes([NEWKEYS])))
        self.sealing = Direction(shared, self._session, b"AC")
        self.unsealing = Direction(shared, self._session, b"BD")

    def signed(self, user: str) -> bytes:
        """A request to be let in that proves the key."""
        blob = string(b"ssh-ed25519") + string(self.key.public_key().public_bytes_raw())
        asked = string(user.encode()) + string(b"ssh-connection") + string(b"publickey") + b"\1"
        request = bytes([AUTH_REQUEST]) + asked + string(b"ssh-ed25519") + string(blob)
        proof = self.key.sign(string(self._session) + request)
        return request + string(string(b"ssh-ed25519") + string(proof))

    def log_in(self, user: str) -> bool:
        """Whether the user was let in. Raises GoneError."""
        self.user = user
        self.send(bytes([SERVICE_REQUEST]) + string(b"ssh-userauth"))
        self.write(self.sealed(self.signed(user)))
        return self.receive_any(AUTH_FAILURE, AUTH_SUCCESS)[0] == AUTH_SUCCESS

    def opened(self, request: bytes) -> bool:
        """Whether a channel was asked for and opened. Raises GoneError."""
        return self.send(request) and self.receive_any(OPENED, NOT_OPENED)[0] == OPENED

    def read_line(self) -> bytes:
        while b"\n" not in self._input:
            self._more()
        line, _, self._input = self._input.partition(b"\n")
        return line.rstrip(b"\r")

    def _read(self, size: int) -> bytes:
        while len(self._input) < size:
            self._more()
        data, self._input = self._input[:size], self._input[size:]
        return data

    def _more(self) -> None:
        try:
            data = self._socket.recv(1 << 16)
        except ConnectionResetError as error:
            raise GoneError from error
        if not data:
            raise GoneError
        self._input += data


def digest(said: Sequence[bytes], shared: bytes) -> bytes:
    """What a key exchange has come to: what both have said, client first, and the secret."""
    return hashlib.sha256(b"".join(map(string, said)) + shared).digest()


class Direction:
    """Keys and count of one way."""

    def __init__(self, shared: bytes, session: bytes, letters: bytes) -> None:
        start, key = (
            hashlib.sha256(shared + session + bytes([letter]) + session).digest()
            for letter in letters
        )
        self._cipher = AESGCM(key[:16])
        self._fixed, self._count = start[:4], int.from_bytes(start[4:12], "big")

    def _nonce(self) -> bytes:
        nonce = self._fixed + self._count.to_bytes(8, "big")
        self._count = (self._count + 1) % (1 << 64)
        return nonce

    def seal(self, payload: bytes) -> bytes:
        packet = framed(payload, _BLOCK, 0)
        return packet[:4] + self._cipher.encrypt(self._nonce(), packet[4:], packet[:4])

    def open(self, head: bytes, body: bytes) -> bytes:
        try:
            packet = self._cipher.decrypt(self._nonce(), body, head)
        except InvalidTag as error:
            raise GoneError("what came cannot be opened") from error
        return packet[1 : len(packet) - packet[0]]


def strings(packet: bytes) -> list[bytes]:
    """The fields of a packet that has nothing but strings."""
    found = []
    while packet:
        (size,) = struct.unpack(">I", packet[:4])
        found.append(packet[4 : 4 + size])
        packet = packet[4 + size :]
    return found


def mpint(raw: bytes) -> bytes:
    """A positive number as the protocol writes it."""
    value = int.from_bytes(raw, "big")
    return string(value.to_bytes(value.bit_length() // 8 + 1, "big"))
