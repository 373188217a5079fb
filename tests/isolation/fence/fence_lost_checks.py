"""Run by test_fence_lost in a network namespace of its own: prints what is reached, as JSON.

The namespace stands for a host with one uplink; other namespaces are a machine beside it and boxes.
"""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from boxd.backends.host.names import HostNames
from boxd.backends.host.run import run
from boxd.backends.network import host_network

PORT = 8000
PUBLIC, LAN, HOST_ON_LAN = "198.51.100.7", "192.168.9.2", "192.168.9.1"
SERVE = f"""
import socket
server = socket.create_server(("0.0.0.0", {PORT}))
print(flush=True)
while True:
    server.accept()[0].close()
"""
CONNECT = """
import socket, sys
socket.create_connection((sys.argv[1], int(sys.argv[2])), 1).close()
"""
BOXES = {"a" * 32: "all", "b" * 32: "all", "c" * 32: f"{PUBLIC},198.51.100.128/25"}


def ip(*words: str) -> None:
    """One command of ip."""
    subprocess.run(("ip", *" ".join(words).split()), check=True)


def within(netns: str, *argv: str) -> tuple[str, ...]:
    """A command line that runs in a namespace; the host's for an empty name."""
    return ("ip", "netns", "exec", netns, *argv) if netns else argv


async def reaches(netns: str, address: str) -> bool:
    """Whether a connection is made."""
    argv = within(netns, sys.executable, "-I", "-c", CONNECT, address, str(PORT))
    quiet = asyncio.subprocess.DEVNULL
    return await (await asyncio.create_subprocess_exec(*argv, stderr=quiet)).wait() == 0


def build() -> None:
    """The machine beside the host, which is also the way to everything else."""
    ip("link set lo up")
    ip("netns add lan")
    ip("link add up0 type veth peer name eth0 netns lan")
    ip(f"addr add {HOST_ON_LAN}/24 dev up0")
    ip("link set up0 up")
    for line in (f"addr add {LAN}/24 dev eth0", f"addr add {PUBLIC}/32 dev lo"):
        ip("-n lan", line)
    ip("-n lan link set lo up")
    ip("-n lan link set eth0 up")
    ip(f"route add default via {LAN}")


async def serve(netns: str) -> asyncio.subprocess.Process:
    """A server on every address of a namespace."""
    argv = within(netns, sys.executable, "-I", "-c", SERVE)
    server = await asyncio.create_subprocess_exec(*argv, stdout=asyncio.subprocess.PIPE)
    assert server.stdout is not None
    await server.stdout.readline()
    return server


class Host:
    """The boxes' network, and who may try to reach what."""

    def __init__(self, state: Path) -> None:
        self.names = HostNames("c0ffee", state)
        self.names.boxes_dir.mkdir(parents=True)
        self.conf = state / "resolv.conf"
        self.conf.write_text(f"nameserver {LAN}\n")
        self.network = host_network.Network(self.names, self.conf)

    async def make(self) -> None:
        """Network and boxes."""
        await self.network.setup()
        for slot, (box, egress) in enumerate(BOXES.items()):
            await self.network.ensure(box, slot, egress=egress)
        subnet = self.network.subnet
        ip(f"-n lan route add {subnet} via {HOST_ON_LAN}")

    async def reached(self) -> list[str]:
        """The ways that are open."""
        a, _, c = (self.names.netns(box) for box in BOXES)
        gateway, other = self.network.address(0).gateway, self.network.address(1).box
        ways = {
            "box to internet": (a, PUBLIC),
            "listed box to internet": (c, PUBLIC),
            "box to box": (a, str(other)),
            "box to gateway": (a, str(gateway)),
            "box to host": (a, HOST_ON_LAN),
            "box to lan": (a, LAN),
            "lan to box": ("lan", str(other)),
            "host to box": ("", str(other)),
        }
        open_ = await asyncio.gather(*(reaches(*way) for way in ways.values()))
        return [name for name, is_open in zip(ways, open_, strict=True) if is_open]

    async def nft(self, *argv: str) -> str:
        """One command of nft."""
        return await run("nft", *argv)


async def main(state: Path) -> dict[str, list[str]]:
    """The ways that are open after each thing that happens."""
    host_network.LOOK_INTERVAL = 3600.0
    build()
    host = Host(state)
    await host.make()
    servers = [await serve(netns) for netns in ("", "lan", host.names.netns("b" * 32))]
    found = {"at first": await host.reached()}
    await host.network.look()  # nothing has changed: says nothing
    for command in (
        "flush ruleset",
        f"delete table inet {host.names.table}",
        f"flush table inet {host.names.table}",
        f"flush chain inet {host.names.table} local",
    ):
        words = command.replace(host.names.table, "TABLE")
        await host.nft(*command.split())
        if "chain" not in words:
            found[f"{words}, nobody looks"] = await host.reached()
        await host.network.look()
        found[f"{words}, looked at"] = await host.reached()
    await host.nft("flush", "ruleset")
    await host.network.remove("b" * 32, 1)
    await host.network.ensure("b" * 32, 1, egress="all")
    found["a box made after a flush"] = await host.reached()
    ip("link add old type veth peer name other")
    ip("rule add pref 902 iif old prohibit")
    ip("link del old")
    ip("rule del pref 901")
    await host.network.look()
    rules = await run("ip", "rule", "show")
    found["rules of devices that are gone"] = [one for one in rules.splitlines() if "old" in one]
    await host.nft("flush", "ruleset")
    found["rule was lost, flush ruleset"] = await host.reached()
    await host.network.look()
    host.conf.write_text("nameserver 192.168.9.77\n")
    await host.network.look()
    resolvers = await host.nft("list", "map", "inet", host.names.table, "resolvers")
    found["resolvers"] = ["192.168.9.77"] if "192.168.9.77" in resolvers else []
    for server in servers:
        with suppress(ProcessLookupError):
            server.kill()
        await server.wait()
    for slot, box in enumerate(BOXES):
        await host.network.remove(box, slot)
    await host.network.close()
    left = await run("ip", "rule", "show") + await host.nft("list", "tables")
    found["left"] = [line for line in left.splitlines() if "prohibit" in line or "boxd" in line]
    return found


if __name__ == "__main__":
    logging.basicConfig(stream=sys.stderr, format="%(levelname)s %(message)s")
    print(json.dumps(asyncio.run(main(Path(sys.argv[1])))))
