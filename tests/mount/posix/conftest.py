"""Fixtures of the POSIX suite: `drive` and `reference` mounts, and `tree`, which is each in turn.

The reference is a tmpfs of the kernel: what a test expects is asked of it too, so an expectation
that Linux itself does not meet fails. Both are mounted once per worker.
"""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.harness.mounts.drive import MountProcess, fresh_volume
from tests.harness.volumes.fsck import fsck_clean
from tests.mount.posix.tree import Tree
from tests.mount.posix.twins import Twins

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.harness.servers.objectserver import ObjectServer


@pytest.fixture(scope="session")
def drive(
    drive_database: str, objectserver: ObjectServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Tree]:
    """A drive, mounted; after all that was done in it `fsck` finds nothing."""
    with fresh_volume(drive_database, objectserver) as volume:
        mounted = MountProcess(volume, tmp_path_factory.mktemp("posix"))
        tree = Tree("drive", mounted.path)
        try:
            yield tree
        finally:
            tree.close()
            mounted.clean()
        fsck_clean(volume)


@pytest.fixture(scope="session")
def reference() -> Iterator[Tree]:
    """A tmpfs with the drive's mount options."""
    options = "nosuid,nodev,size=1g,mode=0755"
    with tempfile.TemporaryDirectory(prefix="wrkfs-reference-") as name:
        path = Path(name)
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", path], check=True)
        tree = Tree("tmpfs", path)
        try:
            yield tree
        finally:
            tree.close()
            subprocess.run(["umount", path], check=True)


@pytest.fixture(params=["reference", "drive"])
def tree(request: pytest.FixtureRequest) -> Tree:
    """One filesystem, in a fresh directory."""
    found: Tree = request.getfixturevalue(request.param)
    found.fresh()
    return found


@pytest.fixture
def twins(reference: Tree, drive: Tree) -> Twins:
    """Both filesystems, for calls that are made on each."""
    found = Twins(reference, drive)
    found.fresh()
    return found
