"""Credentials at rest."""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING

import pytest

from boxd.errors import Unavailable
from boxd.workspaces.seal import KEY_SIZE, Sealer

if TYPE_CHECKING:
    from pathlib import Path

VOLUME, OTHER = "a" * 32, "b" * 32


def test_sealed_text_comes_back_with_the_same_file_only(tmp_path: Path) -> None:
    sealer = Sealer(tmp_path / "keys" / "master.key")
    sealed = sealer.seal(VOLUME, "secret text")
    assert b"secret" not in sealed
    assert sealer.seal(VOLUME, "secret text") != sealed
    assert Sealer(tmp_path / "keys" / "master.key").unseal(VOLUME, sealed) == "secret text"
    with pytest.raises(Unavailable, match=r"other\.key"):
        Sealer(tmp_path / "other.key").unseal(VOLUME, sealed)


def test_another_volume_or_a_changed_byte_is_refused(tmp_path: Path) -> None:
    sealer = Sealer(tmp_path / "master.key")
    sealed = sealer.seal(VOLUME, "secret text")
    with pytest.raises(Unavailable):
        sealer.unseal(OTHER, sealed)
    for at in range(len(sealed)):
        altered = bytearray(sealed)
        altered[at] ^= 1
        with pytest.raises(Unavailable):
            sealer.unseal(VOLUME, bytes(altered))
    for size in (0, 1, 12, 13, len(sealed) - 1):
        with pytest.raises(Unavailable):
            sealer.unseal(VOLUME, sealed[:size])


def test_the_key_file_is_private_and_checked(tmp_path: Path) -> None:
    path = tmp_path / "keys" / "master.key"
    Sealer(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.stat().st_size == KEY_SIZE
    path.chmod(0o640)
    with pytest.raises(Unavailable, match="chmod 600"):
        Sealer(path)
    path.chmod(0o600)
    path.write_bytes(b"short")
    with pytest.raises(Unavailable, match="not a key"):
        Sealer(path)
    path.unlink()
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Unavailable):
        Sealer(path)
