"""Keeps boxes closed while the fence is missing, with routing rules of the host.

Another program may remove the fence (`nft flush ruleset`, with which many `/etc/nftables.conf`
begin), possibly while the service is not running. So the fence marks the packets that it allows,
and these rules reject packets without the mark on every route to a box. The kernel checks the
reverse path of all packets from a box's link (`rp_filter`, with the packet's mark:
`src_valid_mark`). So the rules apply to packets from boxes as well as to packets for boxes. Uplinks
that forward only for boxes forward nothing else without the mark.

ICMP from the host to boxes needs no mark, because the fence's rejections have none. As a result, a
box can get answers when it pings the host.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from boxd.backends.host.files import device
from boxd.backends.host.run import CommandFailed, run
from boxd.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterable
    from ipaddress import IPv4Network

MARK = 0x08000000
"""One bit of the packet mark; other programs may use the other bits."""
_ICMP, _SUBNET, _UPLINK = 900, 901, 902
"""Priorities of the rules: before the tables of VPNs, which must not route rejected packets."""
_UNMARKED = f"fwmark 0/{MARK:#x}"


async def put(subnet: IPv4Network, guarded: Iterable[str]) -> bool:
    """Add missing rules. Return True if a rule of the subnet was missing.

    `guarded` are uplinks that forward for boxes only. Removes rules of devices that no longer
    exist. Raises Unavailable.
    """
    rules = {
        (_ICMP, str(subnet)): f"to {subnet} iif lo ipproto icmp lookup main",
        (_SUBNET, str(subnet)): f"to {subnet} {_UNMARKED} prohibit",
    }
    rules |= {(_UPLINK, uplink): f"iif {uplink} {_UNMARKED} prohibit" for uplink in guarded}
    present = await _present()
    for priority, what in present:
        if priority == _UPLINK and not device(what).exists():
            await _delete(f"iif {what}", priority)
    missing = [key for key in rules if key not in present]
    for key in missing:
        try:
            await run("ip", "rule", "add", "pref", str(key[0]), *rules[key].split())
        except CommandFailed as error:
            if "File exists" in error.message:
                continue
            raise Unavailable(
                "the boxes' network cannot be closed while its fence is missing; this needs "
                f"policy routing in the kernel (CONFIG_IP_MULTIPLE_TABLES): {error.message}"
            ) from error
    return any(what == str(subnet) for _, what in missing)


async def take_away(subnet: IPv4Network) -> None:
    """Remove the rules of a subnet. No error if there are none."""
    for priority, what in await _present():
        if what == str(subnet):
            await _delete(f"to {what}", priority)


async def open_uplinks() -> None:
    """Remove the rules of all uplinks, which no longer forward only for boxes."""
    for priority, what in await _present():
        if priority == _UPLINK:
            await _delete(f"iif {what}", priority)


async def _present() -> set[tuple[int, str]]:
    rules: list[dict[str, Any]] = json.loads(await run("ip", "-j", "-4", "rule", "show"))
    keys = set()
    for rule in rules:
        priority = rule["priority"]
        if priority == _UPLINK and "iif" in rule:
            keys.add((priority, str(rule["iif"])))
        elif priority in (_ICMP, _SUBNET) and "dst" in rule:
            keys.add((priority, f"{rule['dst']}/{rule.get('dstlen', 32)}"))
    return keys


async def _delete(what: str, priority: int) -> None:
    with suppress(CommandFailed):  # another installation has removed it already
        await run("ip", "rule", "del", "pref", str(priority), *what.split())
