"""How the agent notices that its box has become another one."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

from box_guest import protocol
from box_guest.control.identity import Identity
from tests.mount.posix.tree import next_tick

if TYPE_CHECKING:
    from pathlib import Path

CONFIG = {"box_id": "b0", "name": "web", "hostname": "web", "daemon_key": "ssh-ed25519 AAAA"}
KEY = "-----BEGIN OPENSSH PRIVATE KEY-----\n{}\n-----END OPENSSH PRIVATE KEY-----\n"


def write(run_dir: Path, config: object, key: str) -> None:
    """Both files, as the daemon makes them: not at once after those of before."""
    next_tick()
    (run_dir / protocol.AGENT_CONFIG).write_text(json.dumps(config))
    (run_dir / protocol.HOST_KEY).write_text(key)


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A box's run directory."""
    write(tmp_path, CONFIG, KEY.format("one"))
    return tmp_path


def test_files_that_nobody_touched(run_dir: Path) -> None:
    assert not Identity(run_dir).changed()


def test_the_same_text_again_is_no_change(run_dir: Path) -> None:
    identity = Identity(run_dir)
    for path in run_dir.iterdir():
        path.unlink()
    assert not identity.changed()
    write(run_dir, CONFIG, KEY.format("one"))
    assert not identity.changed()


@pytest.mark.parametrize(
    ("config", "key"),
    [
        ({**CONFIG, "box_id": "c1"}, "one"),
        ({**CONFIG, "copy": "2"}, "one"),
        (CONFIG, "two"),
    ],
    ids=["box id", "another field", "host key"],
)
def test_other_texts_are_a_change(run_dir: Path, config: object, key: str) -> None:
    identity = Identity(run_dir)
    write(run_dir, config, KEY.format(key))
    assert identity.changed()
    assert identity.changed()
    assert not Identity(run_dir).changed()


def test_another_directory_in_the_same_place(run_dir: Path) -> None:
    identity = Identity(run_dir)
    times = [(path.name, path.stat()) for path in run_dir.iterdir()]
    run_dir.rename(run_dir.with_name("old"))
    run_dir.mkdir()
    write(run_dir, {**CONFIG, "box_id": "c1"}, KEY.format("two"))
    for name, found in times:
        os.utime(run_dir / name, ns=(found.st_atime_ns, found.st_mtime_ns))
    assert identity.changed()


@pytest.mark.parametrize(
    ("config", "key"),
    [
        ('{"box_id": "c1", "na', KEY.format("two")),
        ("", KEY.format("two")),
        (json.dumps({**CONFIG, "box_id": "c1"}), KEY.format("two")[:40]),
        (json.dumps({**CONFIG, "box_id": "c1"}), ""),
    ],
)
def test_files_that_are_being_written_are_waited_for(run_dir: Path, config: str, key: str) -> None:
    identity = Identity(run_dir)
    (run_dir / protocol.AGENT_CONFIG).write_text(config)
    (run_dir / protocol.HOST_KEY).write_text(key)
    assert not identity.changed()
    write(run_dir, {**CONFIG, "box_id": "c1"}, KEY.format("two"))
    assert identity.changed()
