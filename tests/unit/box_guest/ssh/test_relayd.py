"""The host key of a confidential box's own SSH server."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import asyncssh
import pytest

from box_guest.ssh.relayd import host_key

if TYPE_CHECKING:
    from pathlib import Path

    from tests.plugins.strict_logs import AssertLogs

BOX = "b0" * 16


def test_it_is_made_once_and_kept(tmp_path: Path) -> None:
    made = host_key(tmp_path / "state", BOX)
    assert made.algorithm == b"ssh-ed25519"
    assert host_key(tmp_path / "state", BOX).public_data == made.public_data
    path = tmp_path / "state" / "relay_key"
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_that_of_an_image_or_of_another_box_is_none(tmp_path: Path) -> None:
    theirs = host_key(tmp_path, "c0" * 16)
    mine = host_key(tmp_path, BOX)
    assert mine.public_data != theirs.public_data
    assert host_key(tmp_path, BOX).public_data == mine.public_data
    unnamed = asyncssh.generate_private_key("ssh-ed25519").export_private_key()
    (tmp_path / "relay_key").write_bytes(unnamed)
    assert host_key(tmp_path, BOX).export_private_key() != unnamed


@pytest.mark.parametrize("text", [b"", b"-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n"])
def test_what_is_no_key_is_replaced(tmp_path: Path, text: bytes, assert_logs: AssertLogs) -> None:
    (tmp_path / "relay_key").write_bytes(text)
    with assert_logs("is not a key; creating a new one"):
        made = host_key(tmp_path, BOX)
    assert host_key(tmp_path, BOX).public_data == made.public_data


def test_what_is_no_file_of_its_own_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "relay_key"
    theirs = host_key(tmp_path / "elsewhere", BOX)
    path.symlink_to(tmp_path / "elsewhere" / "relay_key")
    assert host_key(tmp_path, BOX).public_data != theirs.public_data
    assert not path.is_symlink()
    path.unlink()
    os.mkfifo(path)
    made = host_key(tmp_path, BOX)
    assert host_key(tmp_path, BOX).public_data == made.public_data
    path.unlink()
    path.mkdir()
    with pytest.raises(OSError, match="directory"):
        host_key(tmp_path, BOX)


def test_one_that_cannot_be_kept_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="directory"):
        host_key(tmp_path / "file" / "state", BOX)
