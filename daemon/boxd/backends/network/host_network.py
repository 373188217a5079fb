"""The boxes' network on this host: its subnet, its fence, and the parts that belong to each box.

Every box has a network namespace with one link to the host (`eth0` inside). Netlink messages create
it (`rtnetlink`) while one short process loads the box's fence entries. The creation is so fast that
a pool of prepared namespaces is not needed.

Forwarding is enabled only for the uplinks and the boxes' links, not for the host
(`net.ipv4.ip_forward` stays unchanged). The last installation that closes disables it again. If it
was disabled before, the fence allows that uplink to forward to boxes only.

Nothing passes without the fence (`lockdown`). The service checks every few seconds that the loaded
fence and the host's network are unchanged. If not, it loads the fence again, with the entries of
all boxes, in one transaction.
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

from boxd.backends.host.files import SYSCTL, device, read
from boxd.backends.host.names import LINK_FAMILY
from boxd.backends.host.run import CommandFailed, run
from boxd.backends.network import conntrack, fence, forwarding, links, lockdown, subnets
from boxd.backends.network.egress import parse_egress
from boxd.backends.network.resolver import Resolver
from boxd.backends.network.uplinks import parse_resolvers, parse_routes, uplinks
from boxd.cancellation import together
from boxd.errors import BoxdError, Unavailable
from boxd.tasks import BackgroundTasks

if TYPE_CHECKING:
    from collections.abc import Iterable

    from boxd.backends.host.names import HostNames

RESOLV_CONF = Path("/etc/resolv.conf")
UPSTREAM_RESOLV_CONF = Path("/run/systemd/resolve/resolv.conf")
"""File in which systemd-resolved names the servers behind its stub, which only the host can use."""
STUB_RESOLVER = IPv4Address("127.0.0.53")
RESERVE_ATTEMPTS = 5
LOOK_INTERVAL = 5.0
"""Seconds between two checks of the fence."""

_log = logging.getLogger(__name__)


def host_resolvers(resolv_conf: Path) -> tuple[IPv4Address, ...]:
    """Return the name servers that this host uses now."""
    resolvers = parse_resolvers(read(resolv_conf))
    if STUB_RESOLVER in resolvers:
        resolvers = parse_resolvers(read(UPSTREAM_RESOLV_CONF)) or resolvers
    return tuple(dict.fromkeys(resolvers))[: len(fence.DNS_ADDRESSES)]


@dataclass(frozen=True, slots=True)
class _Surroundings:
    """The properties of the host's network on which the table depends; a change reloads it.

    `forwards`: the host itself forwards. `conntrack_max`: connections that it can track, 0 before
    it tracks any. `guarded`: uplinks that forward for boxes only.
    """

    resolvers: tuple[IPv4Address, ...]
    uplinks: tuple[str, ...]
    forwards: bool
    conntrack_max: int
    guarded: tuple[str, ...] = field(default=(), compare=False)


class Network:
    """Creates and removes the boxes' networks.

    Critical section: `_reload` compares the surroundings and loads the table under a lock, so that
    an older state never overwrites a newer one. Entries of a box are also removed under the lock,
    so that none reappears. All other work concerns one box, and the backend serialises the calls
    for each box. `_boxes_by_link` maps links to the boxes that have entries; `_admitted` maps links
    to the entries loaded in the current table. Both change only between two awaits.
    """

    def __init__(self, names: HostNames, resolv_conf: Path = RESOLV_CONF) -> None:
        self._names = names
        self._resolv_conf = resolv_conf
        self._record = names.boxes_dir / "subnet"
        self._lock = asyncio.Lock()
        self._loaded: _Surroundings | None = None
        self._subnet: IPv4Network | None = None
        self._resolver = Resolver(
            self._open, lambda: host_resolvers(resolv_conf), mark=lockdown.MARK
        )
        self._outline: str | None = None
        self._boxes_by_link: dict[str, tuple[IPv4Address, str]] = {}
        self._admitted: dict[str, str] = {}
        self._watch = BackgroundTasks()

    @property
    def subnet(self) -> IPv4Network:
        """The installation's network. Raises Unavailable before `setup`."""
        if self._subnet is None:
            raise Unavailable("the network of the boxes is not set up")
        return self._subnet

    def address(self, slot: int) -> subnets.BoxAddress:
        """Return the addresses of a slot."""
        return subnets.address(self.subnet, slot)

    async def setup(self) -> None:
        """Reserve a subnet and load the fence. Raises Unavailable with a remedy."""
        self._subnet = await self._reserve()
        self._loaded = None
        await self._reload()
        if not self._watch:
            self._watch.start(self._watch_fence(), name="watch of the fence")

    async def look(self) -> None:
        """Load the fence again if the table or the host's network has changed."""
        if self._subnet is None or not self._record.exists():
            return  # this installation has released its network
        await self._reload()
        async with self._lock:
            loaded = self._loaded
            if loaded is None:
                return
            broken = await self._read_outline() != self._outline
            if not self._record.exists():
                return
            if broken:
                await self._load(loaded, replace=True)
            if await self._seal(loaded) or broken:
                _log.error(
                    "another program removed or changed the fence around the boxes' network; the "
                    "fence was loaded again; boxes had no network until now",
                    extra={"table": self._names.table},
                )

    async def release(self) -> None:
        """Stop the work of this process for boxes. Their links and the fence stay."""
        await self._watch.close()
        await self._resolver.close()

    async def close(self) -> None:
        """Release subnet, fence and forwarding. Call this only when no box has a link."""
        await self.release()
        released = self._record.with_suffix(".old")
        if self._record.exists():
            self._record.rename(released)  # first, so that nothing loads the fence again
        await run("nft", "-f", "-", stdin=fence.remove(self._names.table))
        if self._subnet is not None:
            await _remove_address(subnets.resolver(self._subnet))
            await _unroute(self._subnet)
            await lockdown.take_away(self._subnet)
        released.unlink(missing_ok=True)
        self._subnet = None
        self._loaded = None
        tables = await run("nft", "list", "tables")
        if "table inet boxd_" not in tables:
            forwarding.switch_off()
            await lockdown.open_uplinks()

    async def ensure(self, box_id: str, slot: int, *, egress: str, pid: int | None = None) -> None:
        """Create namespace, link and fence entries of a box. Existing parts are not changed.

        `egress` is a policy for `parse_egress`. Raises BadRequest if it is invalid. With `pid`, the
        namespace is that of the process; its pid must not be reused meanwhile.
        """
        policy = parse_egress(egress)
        await self._reload()
        link, address = self._names.link(slot), self.address(slot)
        if policy.is_list:
            own = subnets.resolver(self.subnet)
            await _add_address(own)
            await self._resolver.listen(own)
            self._resolver.know(address.box, link, policy)
        entries = fence.admit(self._names.table, link, address.box, policy)
        exists = links.is_there(self._names, box_id, slot, pid)
        if exists and self._admitted.get(link) == entries:
            return
        # Both at once: no process uses the link yet, and a link without entries passes nothing.
        self._boxes_by_link[link] = (address.box, entries)
        steps = [self._admit(link, entries)]
        steps.append(self._renew(box_id, slot) if exists else self._connect(box_id, slot, pid))
        await together(*steps)

    @staticmethod
    def require_valid(egress: str) -> None:
        """Raise BadRequest if a policy is invalid."""
        parse_egress(egress)

    async def _admit(self, link: str, entries: str) -> None:
        await self._change(entries)
        self._admitted[link] = entries

    async def _renew(self, box_id: str, slot: int) -> None:
        """Apply settings that links of earlier releases do not have."""
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
        """Remove everything that `ensure` creates. No error if there is nothing."""
        if self._loaded is None:
            await links.take_down(self._names, box_id, slot)
            return  # without a table there are no entries
        link, box = self._names.link(slot), self.address(slot).box
        self._boxes_by_link.pop(link, None)
        self._admitted.pop(link, None)
        await self._resolver.forget(box)
        await together(links.take_down(self._names, box_id, slot), self._expel(link, box))
        with suppress(OSError):  # old kernels cannot; their entries expire later
            await asyncio.to_thread(conntrack.forget, box)

    async def abandon(self, box_id: str) -> None:
        """Remove the network of a box whose slot is unknown. No error if there is none."""
        if not self._names.netns_path(box_id).exists():
            return
        await run("ip", "netns", "del", self._names.netns(box_id))  # also removes its link
        async with self._lock:
            if self._loaded is not None:
                await self._load(self._loaded, replace=True)

    async def _expel(self, link: str, box: IPv4Address) -> None:
        async with self._lock:
            await self._change(fence.expel(self._names.table, link, box), locked=True)

    async def _open(
        self, link: str, addresses: list[IPv4Address], port: int | None, seconds: int
    ) -> None:
        text = fence.allow(self._names.table, link, addresses, port, seconds)
        await run("nft", "-f", "-", stdin=text)

    async def _watch_fence(self) -> None:
        last_error = ""
        while True:
            await asyncio.sleep(LOOK_INTERVAL)
            try:
                await self.look()
            except Exception as error:  # the next check must run after any error
                if str(error) != last_error:
                    bug = not isinstance(error, BoxdError | OSError | ValueError)
                    _log.error("the fence around boxes cannot be checked: %s", error, exc_info=bug)
                last_error = str(error)
            else:
                last_error = ""

    async def _change(self, text: str, *, locked: bool = False) -> None:
        """Load entries; retry once if another program has removed the table meanwhile."""
        try:
            await run("nft", "-f", "-", stdin=text)
        except CommandFailed:
            if locked:
                if self._loaded is not None:
                    await self._load(self._loaded, replace=True)
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
            for link in self._boxes_by_link:
                if device(link).exists():
                    self._set_sysctls(link)

    async def _load(self, now: _Surroundings, *, replace: bool = False) -> None:
        """Load the table. With `replace`, replace it completely, with the entries of all boxes."""
        text = fence.remove(self._names.table) if replace else ""
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
        if replace:
            text += "".join(map(self._entries, self._boxes_by_link))
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
        """Return all entries of a box in the table."""
        box, text = self._boxes_by_link[link]
        for address, port, seconds in self._resolver.opened(box):
            text += fence.allow(self._names.table, link, [address], port, seconds)
        return text

    async def _read_outline(self) -> str | None:
        """Return the outline of the loaded table, or None if there is none."""
        try:
            listing = await run("nft", "--terse", "list", "table", "inet", self._names.table)
        except CommandFailed:
            return None
        return fence.outline(listing, self._names.link_prefix)

    async def _seal(self, now: _Surroundings) -> bool:
        if now.forwards:  # the host forwards for others too
            await lockdown.open_uplinks()
        return await lockdown.put(self.subnet, now.guarded)

    def _set_sysctls(self, link: str) -> None:
        links.set_sysctls(link, localnet=self._reaches_loopback())

    def _reaches_loopback(self) -> bool:
        """Return whether a resolver of the host has a loopback address."""
        if self._loaded is None:
            return False
        return any(resolver.is_loopback for resolver in self._loaded.resolvers)

    async def _reserve(self) -> IPv4Network:
        """Reserve a subnet with an unreachable route.

        The kernel adds the route atomically, so installations cannot reserve the same subnet. The
        route also keeps packets for removed boxes from leaving by the default route.
        """
        released = self._record.with_suffix(".old")
        if released.exists():  # the service ended during `close`
            released.rename(self._record)
        for _ in range(RESERVE_ATTEMPTS):
            routes = json.loads(await run("ip", "-j", "-4", "route", "show", "table", "all"))
            recorded = read(self._record).strip()
            if recorded and _is_reserved(routes, IPv4Network(recorded)):
                return IPv4Network(recorded)
            used = _used(routes, self._names.link_prefix)
            used += [IPv4Network(resolver) for resolver in host_resolvers(self._resolv_conf)]
            subnet = IPv4Network(recorded) if recorded else None
            if subnet is None or any(subnet.overlaps(other) for other in used):
                subnet = subnets.choose(self._names.instance, used)
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
        raise Unavailable("other installations reserve every network that is tried; try again")


def _surroundings(resolv_conf: Path) -> _Surroundings:
    resolvers = host_resolvers(resolv_conf)
    routes = parse_routes(read(Path("/proc/net/route")))
    conntrack_max = int(read(SYSCTL / "netfilter/nf_conntrack_max") or 0)
    return _Surroundings(
        resolvers, uplinks(routes, resolvers), forwarding.host_forwards(), conntrack_max
    )


def _used(routes: Iterable[dict[str, str]], own_links: str) -> list[IPv4Network]:
    """Return the networks in the host's routes, except those of this installation's boxes."""
    return [
        IPv4Network(route["dst"])
        for route in routes
        if route["dst"] != "default" and not route.get("dev", "").startswith(own_links)
    ]


def _is_reserved(routes: Iterable[dict[str, str]], subnet: IPv4Network) -> bool:
    return any(r.get("type") == "unreachable" and r["dst"] == str(subnet) for r in routes)


async def _add_address(address: IPv4Address) -> None:
    """Add an address to this host. No error if the host has it."""
    await run("ip", "addr", "replace", f"{address}/32", "dev", "lo")


async def _remove_address(address: IPv4Address) -> None:
    """Remove an address from this host. No error if the host does not have it."""
    addresses = json.loads(await run("ip", "-j", "-4", "addr", "show", "dev", "lo"))
    if any(entry["local"] == str(address) for link in addresses for entry in link["addr_info"]):
        await run("ip", "addr", "del", f"{address}/32", "dev", "lo")


async def _unroute(subnet: IPv4Network) -> None:
    routes = json.loads(await run("ip", "-j", "-4", "route", "show", "type", "unreachable"))
    if any(route["dst"] == str(subnet) for route in routes):
        await run("ip", "route", "del", "unreachable", str(subnet))
