"""The agent's configuration."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from box_guest import config
from box_guest.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

GOOD = {"box_id": "1", "name": "n", "hostname": "h", "daemon_key": "k", "env": {"A": "b"}}


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(GOOD))
    (tmp_path / "host_key").write_bytes(b"private")
    return tmp_path


def test_all_fields_are_read(run_dir: Path) -> None:
    found = config.load(run_dir)
    assert (found.box_id, found.name, found.hostname) == ("1", "n", "h")
    assert (found.daemon_key, found.host_key) == ("k", b"private")
    assert (found.env, found.user, found.relay_key) == ({"A": "b"}, "root", None)


def test_a_relay_key_makes_it_confidential(run_dir: Path) -> None:
    (run_dir / "config.json").write_text(json.dumps({**GOOD, "relay_key": "ssh-ed25519 A"}))
    assert config.load(run_dir).relay_key == "ssh-ed25519 A"


def test_the_host_key_is_not_shown(run_dir: Path) -> None:
    assert "private" not in repr(config.load(run_dir))


@pytest.mark.parametrize(
    "change",
    [
        {"box_id": None},
        {"name": 1},
        {"user": 0},
        {"relay_key": None},
        {"env": []},
        {"env": {"A": 1}},
        {"env": {"": "x"}},
        {"env": {"A=B": "x"}},
        {"env": {"A": "\0"}},
    ],
)
def test_wrong_fields_are_named(run_dir: Path, change: dict[str, object]) -> None:
    (run_dir / "config.json").write_text(json.dumps({**GOOD, **change}))
    with pytest.raises(ConfigError, match=f"config.json: '{next(iter(change))}'"):
        config.load(run_dir)


@pytest.mark.parametrize("text", ["", "[]", "1", "{", "[" * 100_000])
def test_what_is_no_object_is_refused(run_dir: Path, text: str) -> None:
    (run_dir / "config.json").write_text(text)
    with pytest.raises(ConfigError, match=r"config\.json: the file is not"):
        config.load(run_dir)


def test_missing_files_are_named(run_dir: Path) -> None:
    (run_dir / "host_key").unlink()
    with pytest.raises(ConfigError, match="host_key"):
        config.load(run_dir)
