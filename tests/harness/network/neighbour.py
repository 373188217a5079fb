"""A machine beside the host, as a network namespace, to test what boxes can reach.

It answers on addresses of every kind: private, shared (CGNAT), link-local, and two that the fence
treats as public. It counts every packet that it receives.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import secrets
import subprocess
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tests.harness.network.answers import Answers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LOCK = Path("/tmp/boxd-tests-neighbour.lock")
PUBLIC = "198.51.100.213"
PUBLIC_TOO = "203.0.113.213"
PRIVATE = ("192.168.213.2", "10.213.213.2", "172.31.213.2", "100.64.213.2", "169.254.213.2")
HOST_SIDE = "192.168.213.1"
"""The host's own private address on the link."""


class Neighbour:
    """The namespace, its link and the server in it."""

    def __init__(self) -> None:
        token = secrets.token_hex(4)
        self.name = f"nbr{token}"
        self.link = f"n{token}h"
        self.answers = Answers()

    def packets(self) -> dict[str, int]:
        """Return the number of received packets by address."""
        text = _run("ip", "netns", "exec", self.name, "nft", "-j", "list", "table", "ip", "count")
        items = json.loads(text)["nftables"]
        counters = [item["counter"] for item in items if "counter" in item]
        return {c["name"].removeprefix("to_").replace("_", "."): c["packets"] for c in counters}

    def listen(self, *ports: int) -> None:
        """Listen on each address separately, so that answers to datagrams have the right source."""
        for address in (*PRIVATE, PUBLIC, PUBLIC_TOO):
            self.answers.listen(address, *ports)

    def build(self) -> None:
        """Create namespace, link, addresses, routes and counters."""
        _run("ip", "netns", "add", self.name)
        inside = ("ip", "-n", self.name)
        _run("ip", "link", "add", self.link, "type", "veth", "peer", "eth0", "netns", self.name)
        _run("ip", "addr", "add", f"{HOST_SIDE}/30", "dev", self.link)
        _run("ip", "link", "set", self.link, "up")
        _run(*inside, "addr", "add", f"{PRIVATE[0]}/30", "dev", "eth0")
        _run(*inside, "link", "set", "eth0", "up")
        _run(*inside, "link", "set", "lo", "up")
        _run(*inside, "route", "add", "default", "via", HOST_SIDE)
        for address in (*PRIVATE[1:], PUBLIC, PUBLIC_TOO):
            _run(*inside, "addr", "add", f"{address}/32", "dev", "lo")
            _run("ip", "route", "add", f"{address}/32", "via", PRIVATE[0])
        rules = "add table ip count\n"
        rules += "add chain ip count in { type filter hook prerouting priority -300; }\n"
        for address in (*PRIVATE, PUBLIC, PUBLIC_TOO):
            name = f"to_{address.replace('.', '_')}"
            rules += f"add counter ip count {name}\n"
            rules += f'add rule ip count in iifname "eth0" ip daddr {address} counter name {name}\n'
        _run("ip", "netns", "exec", self.name, "nft", "-f", "-", stdin=rules)

    def destroy(self) -> None:
        """Remove all of it; the routes disappear with the link."""
        subprocess.run(["ip", "link", "del", self.link], check=False, capture_output=True)
        subprocess.run(["ip", "netns", "del", self.name], check=False, capture_output=True)


@contextmanager
def neighbour(port: int, dns_port: int) -> Iterator[Neighbour]:
    """Yield a neighbour that answers TCP and UDP on `port` and `dns_port` of all its addresses.

    A machine can have only one at a time, because all neighbours have the same addresses.
    """
    with LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        one = Neighbour()
        try:
            one.build()
            in_namespace(one.name, lambda: one.listen(port, dns_port))
            yield one
        finally:
            one.answers.close()
            one.destroy()


def in_namespace(name: str, action: Callable[[], None]) -> None:
    """Call `action` in a thread that has entered the namespace; its sockets stay there."""
    failure: list[BaseException] = []

    def body() -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        handle = os.open(f"/run/netns/{name}", os.O_RDONLY)
        try:
            if libc.setns(handle, 0x40000000) != 0:
                raise OSError(ctypes.get_errno(), "setns")
            action()
        except BaseException as error:
            failure.append(error)
        finally:
            os.close(handle)

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    if failure:
        raise failure[0]


def _run(*argv: str, stdin: str = "") -> str:
    return subprocess.run(argv, input=stdin, check=True, capture_output=True, text=True).stdout
