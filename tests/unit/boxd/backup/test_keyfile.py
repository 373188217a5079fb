"""Key files: made once, private, never overwritten."""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING

import pytest

from boxd.backup.keyfile import SIZE, make_key, read_key
from boxd.errors import BadRequest, Conflict

if TYPE_CHECKING:
    from pathlib import Path


def test_a_made_key_is_private_and_random(tmp_path: Path) -> None:
    for name in ("one", "two"):
        make_key(tmp_path / name)
    assert stat.S_IMODE((tmp_path / "one").stat().st_mode) == 0o600
    one, two = (read_key(tmp_path / name) for name in ("one", "two"))
    assert len(one.reveal()) == SIZE
    assert one.reveal() != two.reveal()
    assert repr(one.reveal()) not in repr(one)


def test_a_key_is_never_overwritten(tmp_path: Path) -> None:
    make_key(tmp_path / "key")
    before = read_key(tmp_path / "key").reveal()
    with pytest.raises(Conflict, match="never overwritten"):
        make_key(tmp_path / "key")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Conflict):
        make_key(tmp_path / "link")
    assert read_key(tmp_path / "key").reveal() == before


def test_what_is_no_private_key_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match=r"No such file.*--new-key"):
        read_key(tmp_path / "none")
    with pytest.raises(BadRequest, match="No such file"):
        make_key(tmp_path / "none" / "key")
    open_to_all = tmp_path / "open"
    open_to_all.write_bytes(bytes(SIZE))
    open_to_all.chmod(0o644)
    with pytest.raises(BadRequest, match="chmod 600"):
        read_key(open_to_all)
    for size in (0, SIZE - 1, SIZE + 1):
        open_to_all.write_bytes(bytes(size))
        open_to_all.chmod(0o600)
        with pytest.raises(BadRequest, match="not a key"):
            read_key(open_to_all)
