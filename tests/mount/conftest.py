"""Fixture `mounted_twice`: one drive for all tests of a file, which keep to files of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.harness.mounts.drive import MountProcess, fresh_volume
from tests.harness.volumes.fsck import fsck_clean

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.harness.servers.objectserver import ObjectServer


@pytest.fixture(scope="module")
def mounted_twice(
    drive_database: str,
    objectserver: ObjectServer,
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
) -> Iterator[tuple[Path, Path]]:
    """Two mounts of one drive, kept for all tests of the file; fsck is clean at the end.

    `MOUNT_OPTIONS` of the file are options of both.
    """
    mounts: list[MountProcess] = []
    options: tuple[str, ...] = getattr(request.module, "MOUNT_OPTIONS", ())
    with fresh_volume(drive_database, objectserver) as volume:
        try:
            mounts.append(MountProcess(volume, tmp_path_factory.mktemp("here"), *options))
            mounts.append(MountProcess(volume, tmp_path_factory.mktemp("there"), *options))
            yield mounts[0].path, mounts[1].path
        finally:
            for mount in mounts:
                mount.clean()
        fsck_clean(volume)
