"""The host key survives restarts and is private."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from boxd.errors import Unavailable
from boxd.ssh.connection.host_key import FILE, load_host_key

if TYPE_CHECKING:
    from pathlib import Path


def test_the_key_is_created_once_and_is_private(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    first = load_host_key(keys)
    assert load_host_key(keys) == first
    assert first.algorithm == b"ssh-ed25519"
    assert (keys / FILE).stat().st_mode & 0o777 == 0o600
    assert keys.stat().st_mode & 0o777 == 0o700
    assert [path.name for path in keys.iterdir()] == [FILE]


def test_concurrent_calls_return_one_key(tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as pool:
        results = list(pool.map(load_host_key, [tmp_path, tmp_path]))
    assert results[0] == results[1]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644])
def test_a_readable_key_is_rejected_with_the_remedy(tmp_path: Path, mode: int) -> None:
    load_host_key(tmp_path)
    (tmp_path / FILE).chmod(mode)
    with pytest.raises(Unavailable, match=f"chmod 600 {tmp_path / FILE}"):
        load_host_key(tmp_path)


def test_a_corrupt_key_is_named(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text("nonsense")
    (tmp_path / FILE).chmod(0o600)
    with pytest.raises(Unavailable, match=FILE):
        load_host_key(tmp_path)
