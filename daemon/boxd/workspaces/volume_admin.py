"""The commands of `boxd volumes` for the operator: list, restore, and print credentials."""

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
    """Return the configuration of a mount of the volume. It contains secrets.

    Raises NotFound for an unknown volume, and Unavailable if its credentials cannot be decrypted.
    """
    for volume in await store.list_volumes():
        if volume.id == volume_id:
            return volumes.config(volume).to_json()
    raise NotFound(f"there is no volume {volume_id}; `boxd volumes ls` lists them")


async def restore(
    store: ControlStore, volumes: Volumes, volume_id: str, workspace: str | None
) -> str:
    """Restore a volume from the trash for a workspace, which is created if needed.

    `workspace` None: the workspace that the volume belonged to. Returns the name of the workspace.
    Raises BadName, NotFound or Conflict.
    """
    matches = [volume for volume in await store.list_volumes() if volume.id == volume_id]
    name = matches[0].workspace if matches and workspace is None else workspace
    name = None if name is None else parse_workspace(name)
    volume = await volumes.restore(volume_id, name)
    if name is not None:
        await store.add_workspace(volume.owner, name, volume.created)
    return name or DEFAULT_WORKSPACE


Row: TypeAlias = tuple[str, str, str, str, str]
"""Volume, owner, workspace, creation time, and the time until which it can be restored from the
trash."""


def listing(volumes: list[Volume]) -> list[Row]:
    """Return the rows of a table, the oldest volume first."""
    return [
        (
            volume.id,
            volume.owner,
            volume.workspace or "-",
            _moment(volume.created),
            _moment(volume.trashed_until),
        )
        for volume in sorted(volumes, key=lambda volume: volume.created)
    ]


def _moment(when: datetime | None) -> str:
    return "-" if when is None else when.strftime("%Y-%m-%d %H:%M:%SZ")
