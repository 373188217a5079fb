"""Owners, boxes, keys, volumes and questions for a store."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from boxd.model.access.key import ApiKey
from boxd.model.ask import Ask
from boxd.model.box import Box, BoxState
from boxd.model.volume import Volume
from boxd.secret import random_hex

NOW = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
OWNER = "SHA256:alice"
OTHER = "SHA256:bob"
DAY = timedelta(days=1)


def make_box(name: str = "web", workspace: str | None = None, owner: str = OWNER) -> Box:
    """Return a box with every field set."""
    return Box(
        id=random_hex(16),
        owner=owner,
        workspace=workspace,
        name=name,
        image="debian",
        flavor="small",
        cpus=1.5,
        mem_mb=1024,
        state=BoxState.CREATING,
        detail="",
        backend="runc",
        host_key="ssh-ed25519 AAAA",
        created=NOW,
        deadline=NOW + timedelta(hours=2),
        grace=timedelta(minutes=5),
        ephemeral=False,
        drive=True,
        since=NOW - timedelta(minutes=1),
        step=3,
        idle_since=NOW,
        memory=True,
        durable=True,
        auto_suspend=False,
        pinned_until=NOW + timedelta(hours=1),
        pin_why="a build",
        confidential=True,
        egress="example.org",
        disk_mb=2048,
        pids=99,
        clamped=True,
        relay_key="ssh-ed25519 BBBB",
    )


def make_key(name: str = "laptop", owner: str = OWNER) -> ApiKey:
    """Return a key with every field set except the last use."""
    return ApiKey(random_hex(16), owner, name, "ws1", NOW, NOW + timedelta(days=1), None)


def make_volume(workspace: str | None = None, owner: str = OWNER) -> Volume:
    """Return a volume with random names."""
    role, schema, prefix = (random_hex(16) for _ in range(3))
    return Volume(random_hex(16), owner, workspace, role, schema, prefix, b"\x00sealed", NOW)


def make_ask() -> Ask:
    """Return an open question with every field set."""
    return Ask(
        random_hex(16), OWNER, "ws1", "b" * 32, "Go on?", ("yes", "no"), NOW, NOW + DAY, asker="k"
    )
