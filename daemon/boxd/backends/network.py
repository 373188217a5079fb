"""The boxes' network on this host: its subnet, the fence around it, and what each box has of it.

Every box has a network namespace with one link to the host (`eth0` inside). It is made by messages
to the kernel (`rtnetlink`), while one short process loads its entries of the fence; so there is no
pool of prepared ones.

Forwarding is switched on for the uplinks and the boxes' links alone, not for the host
(`net.ipv4.ip_forward` stays as it is), and back off by the last installation that closes. Where it
was off, the fence forbids that uplink to forward to anything but boxes.

Nothing passes without the fence (see `seal`). While the service runs it looks every few seconds
whether the fence is as it was loaded and the host's network as it was then; if not, it loads the
fence anew, with the entries of all boxes in one transaction.
"""

from __future__ import annotations

import asyncio
import json
import logging
from contextlib import suppress
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import TYPE_CHECKING

from boxd.backends import conntrack, fence, forwarding, links, seal, subnets
from boxd.backends.boxlocks import together
from boxd.backends.egress import parse_egress
from boxd.backends.hostfiles import SYSCTL, device, read
from boxd.backends.hostnames import LINK_FAMILY
from boxd.backends.resolver import Resolver
from boxd.backends.run import CommandFailed, run
from boxd.backends.uplinks import parse_resolvers, parse_routes, uplinks
from boxd.errors import BoxdError, Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from boxd.backends.hostnames import HostNames

RESOLV_CONF = Path("/etc/resolv.conf")
UPSTREAM_RESOLV_CONF = Path("/run/systemd/resolve/resolv.conf")
"""Where systemd-resolved names the servers behind its stub, which answers the host alone."""
STUB_RESOLVER = IPv4Address("127.0.0.53")
RESERVE_ATTEMPTS = 5
LOOK_INTERVAL = 5.0
"""Seconds between two looks at the fence."""

_log = logging.getLogger(__name__)


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
    before it follows any; `guarded`: uplinks that forward for boxes only.
    """

    resolvers: tuple[IPv4Address, ...]
    uplinks: tuple[str, ...]
    forwards: bool
    conntrack_max: int
    guarded: tuple[str, ...] = field(default=(), compare=False)


class Network:
    """Makes and removes the boxes' networks.

    Critical section: `_reload` compares the surroundings and loads the table under a lock, so that
    an older state never overwrites a newer one, and entries of a box are taken away under it, so
    that none comes back. Everything else concerns one box, whose calls the backend serialises;
    `_wanted` (by link: the boxes that have entries) and `_admitted` (by link: the entries that the
    present table was given) change between two awaits.
    """

    def __init__(self, names: HostNames, resolv_conf: Path = RESOLV_CONF) -> None:
        self._names = names
        self._resolv_conf = resolv_conf
        self._record = names.boxes_dir / "subnet"
        self._lock = asyncio.Lock()
        self._loaded: _Surroundings | None = None
        self._subnet: IPv4Network | None = None
        self._resolver = Resolver(self._open, lambda: host_resolvers(resolv_conf), mark=seal.MARK)
        self._outline: str | None = None
        self._wanted: dict[str, tuple[IPv4Address, str]] = {}
        self._admitted: dict[str, str] = {}
        self._watch: asyncio.Task[None] | None = None

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
        if self._watch is None:
            self._watch = asyncio.create_task(self._look_again_and_again())

    async def look(self) -> None:
        """Loads the fence anew when it is not as it was loaded, or the host's network is not."""
        if self._subnet is None or not self._record.exists():
            return  # this installation has given its network back
        await self._reload()
        async with self._lock:
            loaded = self._loaded
            if loaded is None:
                return
            broken = await self._read_outline() != self._outline
            if not self._record.exists():
                return
            if broken:
                await self._load(loaded, anew=True)
            if await self._seal(loaded) or broken:
                _log.error(
                    "another program removed or changed the fence around the boxes' network; it "
                    "is loaded again, until then boxes had no network",
                    extra={"table": self._names.table},
                )

    async def release(self) -> None:
        """Ends what this process does for boxes. Their links and the fence go on."""
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
            self._watch = None
        await self._resolver.close()

    async def close(self) -> None:
        """Gives back subnet, fence and forwarding. Only when no box has a link any more."""
        await self.release()
        given_back = self._record.with_suffix(".old")
        if self._record.exists():
            self._record.rename(given_back)  # first: nobody must load the fence again
        await run("nft", "-f", "-", stdin=fence.remove(self._names.table))
        if self._subnet is not None:
            await _take_address(subnets.resolver(self._subnet))
            await _unroute(self._subnet)
            await seal.take_away(self._subnet)
        given_back.unlink(missing_ok=True)
        self._subnet = None
        self._loaded = None
        tables = await run("nft", "list", "tables")
        if "table inet boxd_" not in tables:
            forwarding.switch_off()
            await seal.open_uplinks()

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
        self._wanted[link] = (address.box, entries)
        steps = [self._admit(link, entries)]
        steps.append(self._renew(box_id, slot) if there else self._connect(box_id, slot, pid))
        await together(*steps)

    async def _admit(self, link: str, entries: str) -> None:
        await self._change(entries)
        self._admitted[link] = entries

    async def _renew(self, box_id: str, slot: int) -> None:
        """Sets what links of earlier releases do not have."""
        link = self._names.link(slot)
        self._set_sysctls(link)
        await links.introduce(self._names, box_id, slot, self.address(slot).gateway)

    async def _connect(self, box_id: str, slot: int, pid: int | None) -> None:
        address = self.address(slot)
        await links.take_down(self._names, box_id, slot)
        mtu = links.uplink_mtu(self._loaded.uplinks if self._loaded else ())
        localnet = self._reaches_loopback()
        await links.add(self._names, box_id, slot, address, mtu=mtu, localnet=localnet, pid=pid)

    async def remove(self, box_id: str, slot: int) -> None:
        """Takes everything of `ensure` away. No error if it is not there."""
        if self._loaded is None:
            await links.take_down(self._names, box_id, slot)
            return  # without a table there are no entries
        link, box = self._names.link(slot), self.address(slot).box
        self._wanted.pop(link, None)
        self._admitted.pop(link, None)
        await self._resolver.forget(box)
        await together(links.take_down(self._names, box_id, slot), self._expel(link, box))
        with suppress(OSError):  # an old kernel: it forgets them later
            await asyncio.to_thread(conntrack.forget, box)

    async def abandon(self, box_id: str) -> None:
        """As `remove`, of a box whose slot nobody knows. No error if it is not there."""
        if not self._names.netns_path(box_id).exists():
            return
        await run("ip", "netns", "del", self._names.netns(box_id))  # and its link with it
        async with self._lock:
            if self._loaded is not None:
                await self._load(self._loaded, anew=True)

    async def _expel(self, link: str, box: IPv4Address) -> None:
        async with self._lock:
            await self._change(fence.expel(self._names.table, link, box), locked=True)

    async def _open(
        self, link: str, addresses: list[IPv4Address], port: int | None, seconds: int
    ) -> None:
        text = fence.allow(self._names.table, link, addresses, port, seconds)
        await run("nft", "-f", "-", stdin=text)

    async def _look_again_and_again(self) -> None:
        told = ""
        while True:
            await asyncio.sleep(LOOK_INTERVAL)
            try:
                await self.look()
            except Exception as error:  # whatever it was: the next look must come
                if str(error) != told:
                    bug = not isinstance(error, BoxdError | OSError | ValueError)
                    _log.error(
                        "the fence around boxes cannot be looked after: %s", error, exc_info=bug
                    )
                told = str(error)
            else:
                told = ""

    async def _change(self, text: str, *, locked: bool = False) -> None:
        """Changes entries; once more when another program has removed the table meanwhile."""
        try:
            await run("nft", "-f", "-", stdin=text)
        except CommandFailed:
            if locked:
                if self._loaded is not None:
                    await self._load(self._loaded, anew=True)
            else:
                await self.look()
            await run("nft", "-f", "-", stdin=text)

    async def _reload(self) -> None:
        async with self._lock:
            now = _surroundings(self._resolv_conf)
            if now == self._loaded:
                return
            guarded = [up for up in now.uplinks if forwarding.switch_on(up)]
            now = replace(now, guarded=() if now.forwards else tuple(guarded))
            await self._seal(now)
            await self._load(now)
            self._admitted.clear()
            for link in self._wanted:
                if device(link).exists():
                    self._set_sysctls(link)

    async def _load(self, now: _Surroundings, *, anew: bool = False) -> None:
        """Loads the table; `anew`: without anything of what is there, but with all boxes."""
        text = fence.remove(self._names.table) if anew else ""
        text += fence.ruleset(
            fence.Fence(
                table=self._names.table,
                links=self._names.link_prefix,
                family=LINK_FAMILY,
                subnet=self.subnet,
                resolvers=now.resolvers,
                guarded=now.guarded,
                own_resolver=subnets.resolver(self.subnet),
                connections=fence.connections(now.conntrack_max),
            )
        )
        if anew:
            text += "".join(map(self._entries, self._wanted))
        try:
            await run("nft", "-f", "-", stdin=text)
        except CommandFailed as error:
            raise Unavailable(
                "the network fence cannot be loaded; it needs nftables with nat, reject and "
                f"set support in the kernel (modprobe nf_tables nft_chain_nat): {error.message}"
            ) from error
        self._outline = await self._read_outline()
        self._loaded = now

    def _entries(self, link: str) -> str:
        """All that stood in the table for a box."""
        box, text = self._wanted[link]
        for address, port, seconds in self._resolver.opened(box):
            text += fence.allow(self._names.table, link, [address], port, seconds)
        return text

    async def _read_outline(self) -> str | None:
        """The table as it stands; None when there is none."""
        try:
            listing = await run("nft", "--terse", "list", "table", "inet", self._names.table)
        except CommandFailed:
            return None
        return fence.outline(listing, self._names.link_prefix)

    async def _seal(self, now: _Surroundings) -> bool:
        if now.forwards:  # for others as well, by the host's own will
            await seal.open_uplinks()
        return await seal.put(self.subnet, now.guarded)

    def _set_sysctls(self, link: str) -> None:
        links.set_sysctls(link, localnet=self._reaches_loopback())

    def _reaches_loopback(self) -> bool:
        """Whether a resolver of the host is at one of its loopback addresses."""
        return self._loaded is not None and any(one.is_loopback for one in self._loaded.resolvers)

    async def _reserve(self) -> IPv4Network:
        """An unreachable route is the reservation: it is atomic among installations, and keeps
        packets for boxes that are gone from leaving by the default route."""
        given_back = self._record.with_suffix(".old")
        if given_back.exists():  # not wholly: the service ended in the middle
            given_back.rename(self._record)
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
