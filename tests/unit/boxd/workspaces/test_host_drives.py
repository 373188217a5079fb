"""Users of mounts: counted only after success; a mount without users ends."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from boxd.errors import Conflict, Unavailable
from boxd.workspaces import host_drives
from boxd.workspaces.host_drives import HostDrives
from tests.doubles.backend import FakeBackend
from tests.harness.wait import until
from wrkfs.config import StoreConfig, VolumeConfig

if TYPE_CHECKING:
    from boxd.model.box import Box


class Volumes:
    """A volume for each workspace, named like it."""

    async def find(self, owner: str, workspace: str | None) -> VolumeConfig | None:
        """There is one for all."""
        return await self.ensure(owner, workspace)

    async def ensure(self, owner: str, workspace: str | None) -> VolumeConfig:
        """Nothing to make."""
        del owner
        store = StoreConfig("http://nowhere", "b", "p", "r", "k", "s")
        return VolumeConfig(str(workspace), "v", "postgresql://nowhere", store)


class Mounts:
    """Mounts that stand as told."""

    def __init__(self) -> None:
        self.standing: list[str] = []

    async def ensure(self, config: VolumeConfig) -> Path:
        """Mounts."""
        if config.volume not in self.standing:
            self.standing.append(config.volume)
        return Path("/nowhere") / config.volume

    async def release(self, volume_id: str) -> None:
        """Unmounts."""
        self.standing.remove(volume_id)

    async def health(self, volume_id: str) -> dict[str, object]:
        """All is well."""
        return {"health": "ok"} if volume_id in self.standing else {}

    async def present(self) -> list[str]:
        """What stands."""
        return list(self.standing)


class Broken(FakeBackend):
    """Attaches nothing while `broken`."""

    broken = True

    async def attach_drive(self, box_id: str, source: Path) -> None:
        """Fails or not."""
        del box_id, source
        if self.broken:
            raise Unavailable("no")


async def test_a_box_uses_a_mount_only_after_it_was_attached(box: Box) -> None:
    backend = Broken()
    drives = HostDrives(Volumes(), Mounts(), backend)
    with pytest.raises(Unavailable):
        await drives.attach(box)
    assert (await drives.info(box))["mounted"] is False
    assert "health" not in await drives.info(box)
    assert [*drives._lingering] == [(box.owner, box.workspace)]
    backend.broken = False
    await drives.attach(box)
    assert (await drives.info(box))["mounted"] is True
    assert (await drives.info(box))["health"] == "ok"
    assert not drives._lingering
    backend.broken = True
    with pytest.raises(Unavailable):
        await drives.attach(box)
    assert (await drives.info(box))["mounted"] is True
    await drives.close()


async def test_a_mount_that_was_prepared_in_vain_lingers_and_ends(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_drives, "LINGER", 0)
    mounts = Mounts()
    drives = HostDrives(Volumes(), mounts, Broken())
    await drives.prepare(box.owner, box.workspace)
    await drives.forget(box)
    await until(lambda: mounts.standing == [])
    await drives.close()


async def test_adopted_mounts_without_boxes_end(box: Box) -> None:
    mounts = Mounts()
    mounts.standing = ["ws", "left"]
    drives = HostDrives(Volumes(), mounts, Broken())
    await drives.release_unused({(box.owner, box.workspace)})
    assert mounts.standing == ["ws"]
    await drives.close()


async def test_a_mount_is_retired_at_once_and_never_below_a_box(box: Box) -> None:
    mounts, backend = Mounts(), Broken()
    backend.broken = False
    drives = HostDrives(Volumes(), mounts, backend)
    await drives.attach(box)
    place = (box.owner, box.workspace)
    with pytest.raises(Conflict, match="still uses"):
        await drives.retire(*place, "ws")
    assert mounts.standing == ["ws"]
    await drives.forget(box)
    await drives.retire(*place, "ws")
    assert mounts.standing == []
    assert not drives._lingering
    assert drives.workspace_of("ws") is None
    mounts.standing = ["adopted"]
    await drives.retire(*place, "adopted")
    await drives.retire(*place, "adopted")
    assert mounts.standing == []
    await drives.close()
