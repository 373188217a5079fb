"""What keeps boxes closed while the fence is not there: rules of the host's routing.

Another program may remove the fence (`nft flush ruleset`, with which many `/etc/nftables.conf`
begin), and the service need not run at that time. So the fence marks what it lets pass, and these
rules refuse every way to an address of a box to packets without the mark. As the kernel looks for
the way back of all that comes from a box's link (`rp_filter`, by the packet's mark:
`src_valid_mark`), they hold for what boxes send as well as for what is sent to them. Uplinks that
forward for boxes only forward nothing else without the mark.

No mark is needed by what the host tells boxes by ICMP: refusals are sent without. A box could
therefore have answers to a ping of the host.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from boxd.backends.hostfiles import device
from boxd.backends.run import CommandFailed, run
from boxd.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterable
    from ipaddress import IPv4Network

MARK = 0x08000000
"""One bit of packets' marks; the others are other programs'."""
_ICMP, _SUBNET, _UPLINK = 900, 901, 902
"""Priorities of the rules: before the tables of VPNs, which must not carry what is refused."""
_UNMARKED = f"fwmark 0/{MARK:#x}"


async def put(subnet: IPv4Network, guarded: Iterable[str]) -> bool:
    """Makes the rules that are missing; True when any of the subnet's was.

    `guarded` are uplinks that forward for boxes only; rules of devices that are gone go. Raises
    Unavailable.
    """
    wanted = {
        (_ICMP, str(subnet)): f"to {subnet} iif lo ipproto icmp lookup main",
        (_SUBNET, str(subnet)): f"to {subnet} {_UNMARKED} prohibit",
    }
    wanted |= {(_UPLINK, uplink): f"iif {uplink} {_UNMARKED} prohibit" for uplink in guarded}
    present = await _present()
    for priority, what in present:
        if priority == _UPLINK and not device(what).exists():
            await _delete(f"iif {what}", priority)
    missing = [key for key in wanted if key not in present]
    for key in missing:
        try:
            await run("ip", "rule", "add", "pref", str(key[0]), *wanted[key].split())
        except CommandFailed as error:
            if "File exists" in error.message:
                continue
            raise Unavailable(
                "the boxes' network cannot be kept closed without its fence; it needs routing "
                f"by rules in the kernel (CONFIG_IP_MULTIPLE_TABLES): {error.message}"
            ) from error
    return any(what == str(subnet) for _, what in missing)


async def take_away(subnet: IPv4Network) -> None:
    """Removes the rules of a subnet. No error when they are not there."""
    for priority, what in await _present():
        if what == str(subnet):
            await _delete(f"to {what}", priority)


async def open_uplinks() -> None:
    """Removes the rules of all uplinks: they forward for boxes no more."""
    for priority, what in await _present():
        if priority == _UPLINK:
            await _delete(f"iif {what}", priority)


async def _present() -> set[tuple[int, str]]:
    rules: list[dict[str, Any]] = json.loads(await run("ip", "-j", "-4", "rule", "show"))
    found = set()
    for rule in rules:
        priority = rule["priority"]
        if priority == _UPLINK and "iif" in rule:
            found.add((priority, str(rule["iif"])))
        elif priority in (_ICMP, _SUBNET) and "dst" in rule:
            found.add((priority, f"{rule['dst']}/{rule.get('dstlen', 32)}"))
    return found


async def _delete(what: str, priority: int) -> None:
    with suppress(CommandFailed):  # another installation was faster
        await run("ip", "rule", "del", "pref", str(priority), *what.split())
