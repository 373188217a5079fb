"""Credentials of volumes for the operator: what `boxd volumes` shows and hands out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from boxd.errors import NotFound

if TYPE_CHECKING:
    from boxd.model.volume import Volume
    from boxd.workspaces.volumes import Volumes, VolumeStore


async def credentials_text(store: VolumeStore, volumes: Volumes, volume_id: str) -> str:
    """What a mount of the volume gets. Holds secrets.

    Raises NotFound for an unknown volume, Unavailable when its credentials cannot be unsealed.
    """
    for one in await store.list_volumes():
        if one.id == volume_id:
            config = await volumes.find(one.owner, one.workspace)
            if config is not None:
                return config.to_json()
    raise NotFound(f"there is no volume {volume_id}; `boxd volumes ls` lists them")


def listing(volumes: list[Volume]) -> list[tuple[str, str, str, str]]:
    """Rows of a table: volume, owner, workspace, when it was made; the oldest first."""
    return [
        (one.id, one.owner, one.workspace or "-", one.created.strftime("%Y-%m-%d %H:%M:%SZ"))
        for one in sorted(volumes, key=lambda one: one.created)
    ]
