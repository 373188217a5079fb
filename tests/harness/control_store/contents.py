"""A control store that has rows in every table."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from boxd.model.access.idempotent import IdempotentRequest
from boxd.model.access.key import ApiKey
from boxd.model.access.proxy import ProxySession
from boxd.model.access.share import Share
from boxd.model.account import Audit
from boxd.model.ask import Ask
from boxd.model.box import Box, BoxState
from boxd.model.canvas import Canvas
from boxd.model.profile import Profile, ProfileDefaults
from boxd.model.secret import Agent, StoredSecret
from boxd.model.snapshot import Snapshot
from boxd.model.volume import Volume
from boxd.store.postgres.store import PostgresStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

OWNER = "SHA256:alice/+ü"
NOW = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
LATER = NOW + timedelta(days=1)
INSTANCE = "f" * 32


def box(name: str, state: BoxState) -> Box:
    """Return a box of the owner."""
    return Box(
        id=name.encode().hex().zfill(32),
        owner=OWNER,
        workspace=None,
        name=name,
        image="debian",
        flavor="small",
        cpus=0.1,
        mem_mb=512,
        state=state,
        detail="a 'quoted' \\ line\nof text",
        backend="runc",
        host_key="ssh-ed25519 AAAA",
        created=NOW,
        deadline=None,
        grace=None,
        ephemeral=False,
        drive=True,
        since=NOW,
    )


BOXES = [
    replace(
        box("run", BoxState.RUNNING), grace=timedelta(days=400, hours=1, microseconds=5), step=3
    ),
    replace(box("slept", BoxState.SUSPENDED), memory=True, idle_since=NOW, deadline=LATER),
    replace(box("broken", BoxState.FAILED), durable=True, pinned_until=LATER, pin_why="déjà vu"),
    box("half", BoxState.CREATING),
    replace(box("thrown", BoxState.RUNNING), ephemeral=True),
]


@asynccontextmanager
async def opened(dsn: str) -> AsyncIterator[PostgresStore]:
    """Yield a store on a database."""
    store = PostgresStore(dsn)
    await store.start()
    try:
        yield store
    finally:
        await store.close()


async def fill(dsn: str) -> None:
    """Add rows to every table."""
    async with opened(dsn) as store:
        await store.put_setting("instance", INSTANCE)
        await store.put_setting("here", "on the host")
        for one in BOXES:
            await store.add_box(one)
        await store.add_workspace(OWNER, "ws1", NOW)
        await store.put_profile(
            OWNER,
            Profile(
                "mine",
                "debian",
                ProfileDefaults("large", timedelta(hours=36), None, "none", durable=True),
            ),
        )
        await store.add_key(ApiKey("k1", OWNER, "laptop", None, NOW, LATER, None), bytes(range(32)))
        sealed = bytes(range(256))
        await store.add_volume(Volume("v1", OWNER, None, "role", "schema", "p1", sealed, NOW))
        await store.set_workspace_profile(OWNER, "ws1", "mine")
        for number, one in enumerate(BOXES):
            share = Share(f"{number:032x}", OWNER, one.id, NOW, LATER, None)
            await store.add_share(share, bytes([number]) * 32)
        await store.set_tier(OWNER, "default")
        await store.add_audit(Audit("b" * 32, NOW, OWNER, "rm \\x1b", 0, (OWNER,)))
        await store.put_secret(StoredSecret(OWNER, "workspace", None, "TOKEN", sealed, NOW))
        await store.put_agent(Agent(OWNER, "do 'it'", "TOKEN", "jsonl", sealed, NOW))
        options = ('"yes", {really}', "no \\", "")
        await store.add_ask(Ask("c" * 32, OWNER, None, None, "?", options, NOW, LATER))
        canvas = Canvas(OWNER, "ws1", "plan", "déjà vu", "text/html", 9, 7, NOW, LATER)
        visit = ProxySession("d" * 32, OWNER, None, "k1", BOXES[1].id, 80, None, NOW, LATER)
        await store.add_proxy_session(visit, bytes(range(1, 33)))
        request = IdempotentRequest(OWNER, b"k" * 32, b"r" * 32, "attempt", NOW)
        await store.start_request(request)
        await store.finish_request(request, 201, bytes(range(64)))
        await store.put_canvas(canvas, "<p>a 'quoted'\\\n\tü</p>")
        await store.add_snapshot(
            Snapshot(
                id="a" * 32,
                owner=OWNER,
                workspace=None,
                box_name="slept",
                name="one",
                box_id=BOXES[1].id,
                created=NOW,
                ready=True,
                memory=False,
                image="debian",
                flavor="small",
                cpus=0.5,
                mem_mb=512,
                disk_mb=0,
                pids=512,
                egress="all",
                drive=True,
                backend="runc",
            )
        )
