"""Tries to reach addresses from a box; uses only the standard library, reads and prints JSON.

Input: a list of `[kind, address, port]` with kind `tcp`, `udp` or `dns`. Output: `answered` or the
reason of the failure, for each one.
"""

from __future__ import annotations

import json
import socket
import sys
from concurrent.futures import ThreadPoolExecutor

TIMEOUT = 2.0
QUERY = bytes.fromhex("abcd01000001000000000000") + b"\x04test\x00\x00\x01\x00\x01"


def probe(target: tuple[str, str, int]) -> str:
    """Try one target."""
    kind, address, port = target
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    datagrams = kind != "tcp"
    with socket.socket(family, socket.SOCK_DGRAM if datagrams else socket.SOCK_STREAM) as one:
        one.settimeout(TIMEOUT)
        if "255.255" in address:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        try:
            if "255.255" in address:
                one.sendto(b"hello", (address, port))
            else:
                one.connect((address, port))
                one.sendall(QUERY if kind == "dns" else b"hello")
            return "answered" if one.recv(100) else "closed"
        except OSError as error:
            return f"{type(error).__name__}: {error}"


def main() -> None:
    """Try all targets at once."""
    targets = [(str(kind), str(address), int(port)) for kind, address, port in json.load(sys.stdin)]
    with ThreadPoolExecutor(32) as pool:
        outcome = list(pool.map(probe, targets))
    sys.stdout.write(json.dumps(outcome) + "\n")


if __name__ == "__main__":
    main()
