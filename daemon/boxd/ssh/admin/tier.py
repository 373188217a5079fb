"""`tier`: the tiers with their limits, and the tier of an owner."""

from __future__ import annotations

from dataclasses import fields
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from boxd.names.duration import format_duration
from boxd.ssh.admin.arguments import owner_argument
from boxd.ssh.cli.command import Call, Command, Reply
from boxd.ssh.cli.table import table

if TYPE_CHECKING:
    import argparse

    from boxd.boxes.limits.tier_limits import Tier

COLUMNS = (
    "TIER",
    "OWNERS",
    "BOXES",
    "RUNNING",
    "CPUS",
    "MEM MiB",
    "DISK MiB",
    "SNAPSHOTS",
    "KEYS",
    "SHARES",
    "WORKSPACES",
    "DEADLINE",
)


async def _list(call: Call) -> Reply:
    tiers = await call.operations.owners.fleet_tiers(call.principal)
    document = [{"tier": name, "owners": owners} | _json(tier) for name, tier, owners in tiers]
    rows = [_row(name, tier, owners) for name, tier, owners in tiers]
    return Reply(document, table(COLUMNS, rows))


def _row(name: str, tier: Tier, owners: int) -> tuple[object, ...]:
    return (
        name,
        owners,
        tier.boxes,
        tier.running,
        tier.cpus,
        tier.mem_mb,
        tier.disk_mb,
        tier.snapshots,
        tier.keys,
        tier.shares,
        tier.workspaces,
        format_duration(tier.deadline_max),
    )


def _json(tier: Tier) -> dict[str, Any]:
    """Return every limit under its name in tiers.toml, with times in seconds."""
    limits = {}
    for field in fields(tier):
        value = getattr(tier, field.name)
        if isinstance(value, timedelta):
            limits[f"{field.name}_s"] = value.total_seconds()
        else:
            limits[field.name] = value
    return limits


def _set_arguments(parser: argparse.ArgumentParser) -> None:
    owner_argument(parser)
    parser.add_argument("tier", metavar="TIER")


async def _set(call: Call) -> Reply:
    args = call.args
    await call.operations.owners.fleet_set_tier(call.principal, args.owner, args.tier)
    document = {"owner": args.owner, "tier": args.tier}
    return Reply(document, f"{args.owner} has the limits of tier {args.tier}\n")


COMMANDS = (
    Command(
        ("tier", "ls"),
        "list the tiers, with the number of owners assigned to each",
        "tier ls",
        _list,
    ),
    Command(
        ("tier", "set"),
        "give an owner the limits of a tier",
        "tier set SHA256:... large",
        _set,
        _set_arguments,
    ),
)
