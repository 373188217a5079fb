"""The boxes' network on this host: its subnet, the fence around it, and what each box has of it.

Every box has a network namespace with one link to the host (`eth0` inside). It is made by messages
to the kernel (`rtnetlink`), while one short process loads its entries of the fence; so there is no
pool of prepared ones.

Forwarding is switched on for the uplinks and the boxes' links alone, not for the host
(`net.ipv4.ip_forward` stays as it is), and back off by the last installation that closes. Where it
was off, the fence forbids that uplink to forward to anything but boxes.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import TYPE_CHECKING

from boxd.backends import conntrack, fence, forwarding, links, subnets
from boxd.backends.boxlocks import together
from boxd.backends.egress import parse_egress
from boxd.backends.hostfiles import SYSCTL, read
from boxd.backends.hostnames import LINK_FAMILY
from boxd.backends.resolver import Resolver
from boxd.backends.run import CommandFailed, run
from boxd.backends.uplinks import parse_resolvers, parse_routes, uplinks
from boxd.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from boxd.backends.hostnames import HostNames

RESOLV_CONF = Path("/etc/resolv.conf")
UPSTREAM_RESOLV_CONF = Path("/run/systemd/resolve/resolv.conf")
"""Where systemd-resolved names the servers behind its stub, which answers the host alone."""
STUB_RESOLVER = IPv4Address("127.0.0.53")
RESERVE_ATTEMPTS = 5


def host_resolvers(resolv_conf: Path) -> tuple[IPv4Address, ...]:
    """The name servers that this host uses now."""
    found = parse_resolvers(read(resolv_conf))
    if STUB_RESOLVER in found:
        found = parse_resolvers(read(UPSTREAM_RESOLV_CONF)) or found
    return tuple(dict.fromkeys(found))[: len(fence.DNS_ADDRESSES)]


@dataclass(frozen=True, slots=True)
class _Surroundings:
    """What of the host's network the table depends on; a change reloads it.

    `forwards`: whether the host itself forwards; `conntrack_max`: connections it can follow, 0
    before it follows any.
    """

    resolvers: tuple[IPv4Address, ...]
    uplinks: tuple[str, ...]
    forwards: bool
    conntrack_max: int


class Network:
    """Makes and removes the boxes' networks.

    Critical section: `_reload` compares the surroundings and loads the table under a lock, so that
    an older state never overwrites a newer one. Everything else concerns one box, whose calls the
    backend serialises; `_admitted` (by link: the entries that the present table was given) changes
    between two awaits.
    """

    def __init__(self, names: HostNames, resolv_conf: Path = RESOLV_CONF) -> None:
        self._names = names
        self._resolv_conf = resolv_conf
        self._record = names.boxes_dir / "subnet"
        self._lock = asyncio.Lock()
        self._loaded: _Surroundings | None = None
        self._admitted: dict[str, str] = {}
        self._subnet: IPv4Network | None = None
        self._resolver = Resolver(self._open, lambda: host_resolvers(resolv_conf))

    @property
    def subnet(self) -> IPv4Network:
        """The installation's network; known after `setup`."""
        if self._subnet is None:
            raise Unavailable("the network of the boxes is not set up")
        return self._subnet

    def address(self, slot: int) -> subnets.BoxAddress:
        """The addresses of a slot."""
        return subnets.address(self.subnet, slot)

    async def setup(self) -> None:
        """Reserves a subnet and loads the fence. Raises Unavailable with a remedy."""
        self._subnet = await self._reserve()
        self._loaded = None
        await self._reload()

    async def release(self) -> None:
        """Ends what this process does for boxes. Their links and the fence go on."""
        await self._resolver.close()

    async def close(self) -> None:
        """Gives back subnet, fence and forwarding. Only when no box has a link any more."""
        await self.release()
        await run("nft", "-f", "-", stdin=fence.remove(self._names.table))
        if self._subnet is not None:
            await _take_address(subnets.resolver(self._subnet))
            await _unroute(self._subnet)
        self._record.unlink(missing_ok=True)
        self._subnet = None
        self._loaded = None
        tables = await run("nft", "list", "tables")
        if "table inet boxd_" not in tables:
            forwarding.switch_off()

    async def ensure(self, box_id: str, slot: int, *, egress: str, pid: int | None = None) -> None:
        """Makes namespace, link and fence entries of a box; what is there already stays.

        `egress` is a policy as `parse_egress` reads it; BadRequest. With `pid` the namespace is
        that process's own; no other process may get its number meanwhile.
        """
        policy = parse_egress(egress)
        await self._reload()
        link, address = self._names.link(slot), self.address(slot)
        if policy.is_list:
            own = subnets.resolver(self.subnet)
            await _give_address(own)
            await self._resolver.listen(own)
            self._resolver.know(address.box, link, policy)
        entries = fence.admit(self._names.table, link, address.box, policy)
        there = links.is_there(self._names, box_id, slot, pid)
        if there and self._admitted.get(link) == entries:
            return
        # No process runs on the link yet, and one without entries lets nothing pass.
        steps = [self._admit(link, entries)]
        if not there:
            steps.append(self._connect(box_id, slot, pid))
        await together(*steps)

    async def _admit(self, link: str, entries: str) -> None:
        await run("nft", "-f", "-", stdin=entries)
        self._admitted[link] = entries

    async def _connect(self, box_id: str, slot: int, pid: int | None) -> None:
        address = self.address(slot)
        await links.take_down(self._names, box_id, slot)
        mtu = links.uplink_mtu(self._loaded.uplinks if self._loaded else ())
        loopback = self._loaded is not None and any(
            resolver.is_loopback for resolver in self._loaded.resolvers
        )
        await links.add(self._names, box_id, slot, address, mtu=mtu, localnet=loopback, pid=pid)

    async def remove(self, box_id: str, slot: int) -> None:
        """Takes everything of `ensure` away. No error if it is not there."""
        if self._loaded is None:
            await links.take_down(self._names, box_id, slot)
            return  # without a table there are no entries
        link, box = self._names.link(slot), self.address(slot).box
        self._admitted.pop(link, None)
        await self._resolver.forget(box)
        await together(
            links.take_down(self._names, box_id, slot),
            run("nft", "-f", "-", stdin=fence.expel(self._names.table, link, box)),
        )
        with suppress(OSError):  # an old kernel: it forgets them later
            await asyncio.to_thread(conntrack.forget, box)

    async def _open(
        self, link: str, addresses: list[IPv4Address], port: int | None, seconds: int
    ) -> None:
        text = fence.allow(self._names.table, link, addresses, port, seconds)
        await run("nft", "-f", "-", stdin=text)

    async def _reload(self) -> None:
        async with self._lock:
            now = _surroundings(self._resolv_conf)
            if now == self._loaded:
                return
            guarded = [up for up in now.uplinks if forwarding.switch_on(up)]
            text = fence.ruleset(
                fence.Fence(
                    table=self._names.table,
                    links=self._names.link_prefix,
                    family=LINK_FAMILY,
                    subnet=self.subnet,
                    resolvers=now.resolvers,
                    guarded=() if now.forwards else tuple(guarded),
                    own_resolver=subnets.resolver(self.subnet),
                    connections=fence.connections(now.conntrack_max),
                )
            )
            try:
                await run("nft", "-f", "-", stdin=text)
            except CommandFailed as error:
                raise Unavailable(
                    "the network fence cannot be loaded; it needs nftables with nat, reject and "
                    f"set support in the kernel (modprobe nf_tables nft_chain_nat): {error.message}"
                ) from error
            self._loaded = now
            self._admitted.clear()

    async def _reserve(self) -> IPv4Network:
        """An unreachable route is the reservation: it is atomic among installations, and keeps
        packets for boxes that are gone from leaving by the default route."""
        for _ in range(RESERVE_ATTEMPTS):
            routes = json.loads(await run("ip", "-j", "-4", "route", "show", "table", "all"))
            recorded = read(self._record).strip()
            if recorded and _is_reserved(routes, IPv4Network(recorded)):
                return IPv4Network(recorded)
            taken = _taken(routes, self._names.link_prefix)
            taken += [IPv4Network(resolver) for resolver in host_resolvers(self._resolv_conf)]
            subnet = IPv4Network(recorded) if recorded else None
            if subnet is None or any(subnet.overlaps(other) for other in taken):
                subnet = subnets.choose(self._names.instance, taken)
            self._record.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._record.write_text(f"{subnet}\n")
            try:
                await run("ip", "route", "add", "unreachable", str(subnet))
            except CommandFailed as error:
                if "File exists" not in error.message:
                    raise
                self._record.unlink()
                continue
            return subnet
        raise Unavailable("another installation takes every network that is chosen; try again")


def _surroundings(resolv_conf: Path) -> _Surroundings:
    resolvers = host_resolvers(resolv_conf)
    routes = parse_routes(read(Path("/proc/net/route")))
    conntrack_max = int(read(SYSCTL / "netfilter/nf_conntrack_max") or 0)
    return _Surroundings(
        resolvers, uplinks(routes, resolvers), forwarding.host_forwards(), conntrack_max
    )


def _taken(routes: Iterable[dict[str, str]], own_links: str) -> list[IPv4Network]:
    """Networks that the host routes anywhere, but for the boxes' own."""
    return [
        IPv4Network(route["dst"])
        for route in routes
        if route["dst"] != "default" and not route.get("dev", "").startswith(own_links)
    ]


def _is_reserved(routes: Iterable[dict[str, str]], subnet: IPv4Network) -> bool:
    return any(r.get("type") == "unreachable" and r["dst"] == str(subnet) for r in routes)


async def _give_address(address: IPv4Address) -> None:
    """Makes an address this host's. No error if it is already."""
    await run("ip", "addr", "replace", f"{address}/32", "dev", "lo")


async def _take_address(address: IPv4Address) -> None:
    """The host has the address no more. No error if it had not."""
    addresses = json.loads(await run("ip", "-j", "-4", "addr", "show", "dev", "lo"))
    if any(one["local"] == str(address) for link in addresses for one in link["addr_info"]):
        await run("ip", "addr", "del", f"{address}/32", "dev", "lo")


async def _unroute(subnet: IPv4Network) -> None:
    routes = json.loads(await run("ip", "-j", "-4", "route", "show", "type", "unreachable"))
    if any(route["dst"] == str(subnet) for route in routes):
        await run("ip", "route", "del", "unreachable", str(subnet))
