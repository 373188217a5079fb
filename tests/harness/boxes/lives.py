"""The ways in which a box starts from a saved memory."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, TypeAlias

from tests.harness.boxes.suspending import Guest

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.harness.boxes.suspending import Sleepy

    Way: TypeAlias = Callable[..., Awaitable[Guest]]


async def resumed(sleepy: Sleepy, **plan: object) -> Guest:
    """Suspend and resume a box."""
    guest = await _guest(sleepy, **plan)
    await sleepy.suspend(guest)
    await sleepy.resume(guest)
    return guest


async def restored(sleepy: Sleepy, **plan: object) -> Guest:
    """Restore a box from its own snapshot."""
    guest, backend = await _guest(sleepy, **plan), sleepy.host.backend
    snapshot = await _snapshot(sleepy, guest.box)
    await backend.stop(guest.box)
    await backend.restore_snapshot(guest.box, snapshot)
    await backend.drop_snapshot(snapshot)
    await backend.resume(guest.box, None)
    return guest


async def forked(sleepy: Sleepy, **plan: object) -> Guest:
    """Fork a running box, which continues, with the same limits."""
    base = await _guest(sleepy, **plan)
    return await _made_of(sleepy, base, **plan)


async def copied(sleepy: Sleepy, **plan: object) -> Guest:
    """Create a box as from a template: from one without network, with other limits."""
    base = await _guest(sleepy, **plan | {"egress": "none", "cpus": 1.0, "pids": 128})
    return await _made_of(sleepy, base, **plan)


WAYS: dict[str, Way] = {
    "resumed": resumed,
    "restored": restored,
    "forked": forked,
    "copied": copied,
}


async def _guest(sleepy: Sleepy, **plan: object) -> Guest:
    return await sleepy.guest(box=await sleepy.host.box(**plan))


async def _snapshot(sleepy: Sleepy, box: str) -> str:
    snapshot = secrets.token_hex(16)
    backend = sleepy.host.backend
    await backend.freeze(box)
    await backend.snapshot(box, snapshot)
    await backend.thaw(box)
    return snapshot


async def _made_of(sleepy: Sleepy, base: Guest, **changes: object) -> Guest:
    backend = sleepy.host.backend
    snapshot = await _snapshot(sleepy, base.box)
    plan = sleepy.host.plan(**{"hostname": "child", **changes})
    await backend.clone(plan, snapshot)
    await backend.drop_snapshot(snapshot)
    await backend.resume(plan.box_id, None)
    return Guest(sleepy.host, plan.box_id)
