"""The record of a box in the control store."""

from __future__ import annotations

from datetime import UTC, datetime

from boxd.model.box import Box, BoxState

BOX = Box(
    id="0" * 32,
    owner="SHA256:alice",
    workspace=None,
    name="web",
    image="debian",
    flavor="small",
    cpus=1.0,
    mem_mb=1024,
    state=BoxState.CREATING,
    detail="",
    backend="fake",
    host_key="ssh-ed25519 AAAA",
    created=datetime(2026, 1, 2, tzinfo=UTC),
    deadline=None,
    grace=None,
    ephemeral=False,
    drive=False,
    since=datetime(2026, 1, 2, tzinfo=UTC),
)
