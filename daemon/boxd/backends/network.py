"""The boxes' network on this host: namespaces, links, forwarding, and loading the fence.

Every box has a network namespace with one link to the host (`eth0` inside). Making all of it takes
three short processes and is nearly all of `create`: *measured* p50 31 of 33 ms on 2 cores with a
load of 3 to 4. It is a quarter of create and start together, so there is no pool of prepared ones.

Forwarding is switched on for the uplinks and the boxes' links alone, not for the host
(`net.ipv4.ip_forward` stays as it is), and back off by the last installation that closes. Where it
was off, the fence forbids that uplink to forward to anything but boxes.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import TYPE_CHECKING

from boxd.backends import fence, subnets
from boxd.backends.hostnames import LINK_FAMILY
from boxd.backends.run import CommandFailed, run
from boxd.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from boxd.backends.hostnames import HostNames

RESOLV_CONF = Path("/etc/resolv.conf")
UPSTREAM_RESOLV_CONF = Path("/run/systemd/resolve/resolv.conf")
"""Where systemd-resolved names the servers behind its stub, which answers the host alone."""
STUB_RESOLVER = IPv4Address("127.0.0.53")
FORWARDING_DIR = Path("/run/boxd-forwarding")
"""One file per uplink whose forwarding is on because of boxes; shared by all installations."""
SYSCTL = Path("/proc/sys/net")
RESERVE_ATTEMPTS = 5
TAKE_DOWN_ATTEMPTS = 5
DEFAULT_MTU = 1500


@dataclass(frozen=True, slots=True)
class Route:
    """One line of the host's main routing table."""

    device: str
    network: IPv4Network
    gateway: IPv4Address | None


def parse_routes(text: str) -> list[Route]:
    """Reads the text of /proc/net/route (addresses are little-endian hex)."""
    routes = []
    for line in text.splitlines()[1:]:
        device, destination, gateway, *_, mask, _mtu, _window, _irtt = line.split()
        prefix = int(mask, 16).bit_count()
        via = _address(gateway)
        routes.append(
            Route(
                device,
                IPv4Network((_address(destination), prefix), strict=False),
                None if int(via) == 0 else via,
            )
        )
    return routes


def _address(little_endian: str) -> IPv4Address:
    return IPv4Address(int.from_bytes(bytes.fromhex(little_endian), "little"))


def uplinks(routes: Iterable[Route], resolvers: Sequence[IPv4Address]) -> tuple[str, ...]:
    """Devices through which boxes go out: those that lead to any address that the fence does not
    deny, and the way to each resolver."""
    usable = [r for r in routes if not r.device.startswith((LINK_FAMILY, "lo")) and r.device != "*"]
    found = {r.device for r in usable if not any(map(r.network.subnet_of, fence.DENIED))}
    for resolver in resolvers:
        matching = [r for r in usable if resolver in r.network]
        if matching:
            found.add(max(matching, key=lambda r: r.network.prefixlen).device)
    return tuple(sorted(found))


def parse_resolvers(text: str) -> list[IPv4Address]:
    """The IPv4 name servers of a resolv.conf. IPv6 ones are out of a box's reach."""
    found = []
    for line in text.splitlines():
        words = line.split()
        if len(words) < 2 or words[0] != "nameserver":
            continue
        try:
            found.append(IPv4Address(words[1]))
        except ValueError:
            continue
    return found


def host_resolvers(resolv_conf: Path) -> tuple[IPv4Address, ...]:
    """The name servers that this host uses now."""
    found = parse_resolvers(_read(resolv_conf))
    if STUB_RESOLVER in found:
        found = parse_resolvers(_read(UPSTREAM_RESOLV_CONF)) or found
    return tuple(dict.fromkeys(found))[: len(fence.DNS_ADDRESSES)]


@dataclass(frozen=True, slots=True)
class _Surroundings:
    """What of the host's network the table depends on; a change reloads it."""

    resolvers: tuple[IPv4Address, ...]
    uplinks: tuple[str, ...]
    forwards: bool
    """Whether the host itself forwards."""


class Network:
    """Makes and removes the boxes' networks.

    Critical section: `_reload` compares the surroundings and loads the table under a lock, so that
    an older state never overwrites a newer one. Everything else concerns one box, whose calls the
    backend serialises.
    """

    def __init__(self, names: HostNames, resolv_conf: Path = RESOLV_CONF) -> None:
        self._names = names
        self._resolv_conf = resolv_conf
        self._record = names.boxes_dir / "subnet"
        self._lock = asyncio.Lock()
        self._loaded: _Surroundings | None = None
        self._subnet: IPv4Network | None = None

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

    async def close(self) -> None:
        """Gives back subnet, fence and forwarding. Only when no box has a link any more."""
        await run("nft", "-f", "-", stdin=fence.remove(self._names.table))
        if self._subnet is not None:
            await _unroute(self._subnet)
        self._record.unlink(missing_ok=True)
        self._subnet = None
        self._loaded = None
        tables = await run("nft", "list", "tables")
        if "table inet boxd_" not in tables:
            _restore_forwarding()

    async def ensure(self, box_id: str, slot: int, *, open_: bool) -> None:
        """Makes namespace, link and fence entries of a box; what is there already stays."""
        await self._reload()
        link, netns = self._names.link(slot), self._names.netns(box_id)
        address = self.address(slot)
        await run(
            "nft",
            "-f",
            "-",
            stdin=fence.admit(self._names.table, link, address.box, open_=open_),
        )
        if self._names.netns_path(box_id).exists() and _device(link).exists():
            return
        await self._take_down(box_id, slot)
        mtu = _mtu(self._loaded.uplinks if self._loaded else ())
        await run(
            "ip",
            "-batch",
            "-",
            stdin=f"netns add {netns}\n"
            f"link add dev {link} mtu {mtu} type veth peer name eth0 mtu {mtu} netns {netns}\n"
            f"link set dev {link} addrgenmode none\n"
            f"addr add {address.gateway}/{subnets.PREFIX} dev {link}\n"
            f"link set {link} up\n",
        )
        self._set_link_sysctls(link)
        await run(
            "ip",
            "-n",
            netns,
            "-batch",
            "-",
            stdin="link set lo up\n"
            "link set dev eth0 addrgenmode none\n"
            f"addr add {address.box}/{subnets.PREFIX} dev eth0\n"
            "link set eth0 up\n"
            f"route add default via {address.gateway}\n",
        )

    async def remove(self, box_id: str, slot: int) -> None:
        """Takes everything of `ensure` away. No error if it is not there."""
        await self._take_down(box_id, slot)
        if self._loaded is None:
            return  # without a table there are no entries
        text = fence.expel(self._names.table, self._names.link(slot), self.address(slot).box)
        await run("nft", "-f", "-", stdin=text)

    async def _take_down(self, box_id: str, slot: int) -> None:
        """Removes the link first: a namespace's own removal is finished by the kernel later.

        The kernel may be removing the link of a lost namespace just now, hence the second look.
        """
        link = self._names.link(slot)
        for attempt in range(TAKE_DOWN_ATTEMPTS):
            batch = f"link del {link}\n" if _device(link).exists() else ""
            if self._names.netns_path(box_id).exists():
                batch += f"netns del {self._names.netns(box_id)}\n"
            if not batch:
                return
            try:
                await run("ip", "-batch", "-", stdin=batch)
            except CommandFailed as error:
                gone = "Cannot find device" in error.message
                if not gone or attempt + 1 == TAKE_DOWN_ATTEMPTS:
                    raise

    async def _reload(self) -> None:
        async with self._lock:
            now = _surroundings(self._resolv_conf)
            if now == self._loaded:
                return
            guarded = [up for up in now.uplinks if _forward(up)]
            text = fence.ruleset(
                fence.Fence(
                    table=self._names.table,
                    links=self._names.link_prefix,
                    family=LINK_FAMILY,
                    subnet=self.subnet,
                    resolvers=now.resolvers,
                    guarded=() if now.forwards else tuple(guarded),
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

    async def _reserve(self) -> IPv4Network:
        """An unreachable route is the reservation: it is atomic among installations, and keeps
        packets for boxes that are gone from leaving by the default route."""
        for _ in range(RESERVE_ATTEMPTS):
            routes = json.loads(await run("ip", "-j", "-4", "route", "show", "table", "all"))
            recorded = _read(self._record).strip()
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

    def _set_link_sysctls(self, link: str) -> None:
        loopback = self._loaded and any(r.is_loopback for r in self._loaded.resolvers)
        for name, value in {
            "forwarding": "1",
            "rp_filter": "1",
            "arp_ignore": "1",
            "accept_redirects": "0",
            "send_redirects": "0",
            "route_localnet": "1" if loopback else "0",
        }.items():
            (SYSCTL / "ipv4/conf" / link / name).write_text(value)
        six = SYSCTL / "ipv6/conf" / link / "disable_ipv6"
        if six.exists():
            six.write_text("1")


def _surroundings(resolv_conf: Path) -> _Surroundings:
    resolvers = host_resolvers(resolv_conf)
    routes = parse_routes(_read(Path("/proc/net/route")))
    forwards = _read(SYSCTL / "ipv4/ip_forward").strip() == "1"
    return _Surroundings(resolvers, uplinks(routes, resolvers), forwards)


def _taken(routes: Iterable[dict[str, str]], own_links: str) -> list[IPv4Network]:
    """Networks that the host routes anywhere, but for the boxes' own."""
    return [
        IPv4Network(route["dst"])
        for route in routes
        if route["dst"] != "default" and not route.get("dev", "").startswith(own_links)
    ]


def _is_reserved(routes: Iterable[dict[str, str]], subnet: IPv4Network) -> bool:
    return any(r.get("type") == "unreachable" and r["dst"] == str(subnet) for r in routes)


async def _unroute(subnet: IPv4Network) -> None:
    routes = json.loads(await run("ip", "-j", "-4", "route", "show", "type", "unreachable"))
    if any(route["dst"] == str(subnet) for route in routes):
        await run("ip", "route", "del", "unreachable", str(subnet))


def _device(link: str) -> Path:
    return Path("/sys/class/net") / link


def _mtu(devices: Iterable[str]) -> int:
    """What fits through every uplink."""
    return min(
        (int(_read(_device(d) / "mtu") or DEFAULT_MTU) for d in devices), default=DEFAULT_MTU
    )


def _forward(device: str) -> bool:
    """Lets an uplink forward; True when it does so only because of boxes."""
    switch = SYSCTL / "ipv4/conf" / device / "forwarding"
    mark = FORWARDING_DIR / device
    if _read(switch).strip() == "0":
        FORWARDING_DIR.mkdir(mode=0o700, exist_ok=True)
        mark.touch()
        try:
            switch.write_text("1")
        except OSError as error:
            mark.unlink()
            raise Unavailable(
                f"{switch} cannot be set to 1, which boxes need to reach the network: "
                f"{error.strerror}; run the service where /proc/sys is writable"
            ) from error
    return mark.exists()


def _restore_forwarding() -> None:
    if not FORWARDING_DIR.is_dir():
        return
    for mark in FORWARDING_DIR.iterdir():
        switch = SYSCTL / "ipv4/conf" / mark.name / "forwarding"
        if switch.exists():
            switch.write_text("0")
        mark.unlink()
    FORWARDING_DIR.rmdir()


def _read(path: Path) -> str:
    """The text of a file, empty when there is none."""
    try:
        return path.read_text()
    except FileNotFoundError:
        return ""
