"""Credentials of volumes for the operator: what `boxd volumes` shows and hands out."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from boxd.errors import NotFound
from boxd.names.words import DEFAULT_WORKSPACE, parse_workspace

if TYPE_CHECKING:
    from datetime import datetime

    from boxd.model.volume import Volume
    from boxd.store.interface import ControlStore
    from boxd.workspaces.volumes import Volumes, VolumeStore


async def credentials_text(store: VolumeStore, volumes: Volumes, volume_id: str) -> str:
    """What a mount of the volume gets. Holds secrets.

    Raises NotFound for an unknown volume, Unavailable when its credentials cannot be unsealed.
    """
    for one in await store.list_volumes():
        if one.id == volume_id:
            return volumes.config(one).to_json()
    raise NotFound(f"there is no volume {volume_id}; `boxd volumes ls` lists them")


async def restored(
    store: ControlStore, volumes: Volumes, volume_id: str, workspace: str | None
) -> str:
    """Takes a volume out of the trash, for a workspace, which is made when it is not there.

    None: the one whose drive it was. Returns its name. BadName, NotFound, Conflict.
    """
    found = [one for one in await store.list_volumes() if one.id == volume_id]
    name = found[0].workspace if found and workspace is None else workspace
    name = None if name is None else parse_workspace(name)
    volume = await volumes.restore(volume_id, name)
    if name is not None:
        await store.add_workspace(volume.owner, name, volume.created)
    return name or DEFAULT_WORKSPACE


Row: TypeAlias = tuple[str, str, str, str, str]
"""Volume, owner, workspace, when it was made, and until when the trash keeps it."""


def listing(volumes: list[Volume]) -> list[Row]:
    """Rows of a table; the oldest first."""
    return [
        (one.id, one.owner, one.workspace or "-", _moment(one.created), _moment(one.trashed_until))
        for one in sorted(volumes, key=lambda one: one.created)
    ]


def _moment(when: datetime | None) -> str:
    return "-" if when is None else when.strftime("%Y-%m-%d %H:%M:%SZ")
