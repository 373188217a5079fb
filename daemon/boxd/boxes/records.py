"""New box records. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from boxd.model.box import Box, BoxState
from boxd.secret import random_hex

if TYPE_CHECKING:
    from datetime import datetime

    from boxd.boxes.wish import Wish


def new_box(
    owner: str,
    workspace: str | None,
    name: str,
    wish: Wish,
    *,
    now: datetime,
    ephemeral: bool,
    durable: bool = False,
    host_key: str = "",
    relay_key: str = "",
) -> Box:
    """The record of a box about to be made; its deadline counts from `now`.

    A `relay_key`, the public key that its own SSH server will take, makes it confidential.
    """
    return Box(
        id=random_hex(16),
        owner=owner,
        workspace=workspace,
        name=name,
        image=wish.image,
        flavor=wish.flavor.name,
        cpus=wish.flavor.cpus,
        mem_mb=wish.flavor.mem_mb,
        state=BoxState.CREATING,
        detail="",
        backend=wish.backend,
        host_key=host_key,
        created=now,
        deadline=None if wish.ttl is None else now + wish.ttl,
        grace=wish.grace,
        ephemeral=ephemeral,
        drive=wish.drive,
        durable=durable,
        since=now,
        egress=wish.egress,
        disk_mb=wish.disk_mb,
        pids=wish.flavor.pids,
        clamped=any(one.sign == "^" for one in wish.shortened),
        confidential=bool(relay_key),
        relay_key=relay_key,
    )
