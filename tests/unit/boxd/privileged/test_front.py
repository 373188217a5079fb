"""The front owns its directories, and no file of the host through them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from boxd.errors import Unavailable
from boxd.privileged.front import give

if TYPE_CHECKING:
    from pathlib import Path

USER = 1_000_123


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    """Return a directory with a key of root."""
    directory = tmp_path / "keys"
    directory.mkdir(mode=0o700)
    (directory / "master.key").write_bytes(b"secret")
    return directory


def owners(directory: Path) -> set[tuple[int, int]]:
    """Return the owners of a directory and its files."""
    places = [directory, *directory.iterdir()]
    return {(place.lstat().st_uid, place.lstat().st_gid) for place in places}


def test_a_directory_with_its_files_goes_to_the_user(keys: Path) -> None:
    give(keys, USER)
    assert owners(keys) == {(USER, USER)}


def test_a_new_file_of_root_goes_to_the_user_as_well(keys: Path) -> None:
    give(keys, USER)
    (keys / "ssh_host_ed25519").write_bytes(b"restored")
    give(keys, USER)
    assert owners(keys) == {(USER, USER)}


def test_a_missing_directory_is_created(tmp_path: Path) -> None:
    give(tmp_path / "keys", USER)
    assert owners(tmp_path / "keys") == {(USER, USER)}
    assert (tmp_path / "keys").stat().st_mode & 0o777 == 0o700


def test_a_link_gives_no_other_file(keys: Path, tmp_path: Path) -> None:
    other = tmp_path / "shadow"
    other.write_bytes(b"of the host")
    (keys / "link").symlink_to(other)
    with pytest.raises(Unavailable, match="link is not a file with a single name; replace it"):
        give(keys, USER)
    (keys / "link").unlink()
    os.link(other, keys / "link")
    with pytest.raises(Unavailable, match="link is not a file with a single name; replace it"):
        give(keys, USER)
    assert other.stat().st_uid == os.geteuid()


def test_a_directory_that_is_a_link_is_refused(keys: Path) -> None:
    keys.rename(keys.with_name("elsewhere"))
    keys.symlink_to(keys.with_name("elsewhere"))
    with pytest.raises(Unavailable, match="make it a directory"):
        give(keys, USER)


def test_a_directory_that_others_can_read_is_refused(keys: Path) -> None:
    keys.chmod(0o755)
    with pytest.raises(Unavailable, match="is open to others; run: chmod 700"):
        give(keys, USER)
