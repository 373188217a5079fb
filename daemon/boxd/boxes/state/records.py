"""New box records. Pure functions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from boxd.model.box import Box, BoxState
from boxd.secret import random_hex

if TYPE_CHECKING:
    from datetime import datetime

    from boxd.boxes.state.requests import BoxRequest
    from boxd.boxes.state.settings import BoxSettings


def new_box(
    request: BoxRequest, settings: BoxSettings, *, now: datetime, relay_key: str = ""
) -> Box:
    """Return the record of a box that is about to be created, without a host key.

    Its deadline counts from `now`. `relay_key` is the public key that the box's own SSH server
    accepts; a box with a relay key is confidential.
    """
    flavor = settings.flavor
    return Box(
        id=random_hex(16),
        owner=request.owner,
        workspace=request.workspace,
        name=request.spec.name,
        image=settings.image,
        flavor=flavor.name,
        cpus=flavor.cpus,
        mem_mb=flavor.mem_mb,
        state=BoxState.CREATING,
        detail="",
        backend=settings.backend,
        host_key="",
        created=now,
        deadline=None if settings.ttl is None else now + settings.ttl,
        grace=settings.grace,
        ephemeral=bool(request.ephemeral),
        drive=settings.drive,
        durable=settings.durable,
        since=now,
        egress=settings.egress,
        disk_mb=settings.disk_mb,
        pids=flavor.pids,
        clamped=any(one.sign == "^" for one in settings.shortened),
        confidential=bool(relay_key),
        relay_key=relay_key,
        profile=settings.profile,
        runtime=flavor.runtime,
        containers=flavor.containers,
    )
