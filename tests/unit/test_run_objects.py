"""A run of tests takes nothing of another service on the machine for its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from boxd.config import Config
from tests.harness import pytester
from tests.harness.mounts.drive import until
from tests.plugins.run_objects import REPOSITORY, Others, state_dir

LIMIT_S = 50.0
ROOM = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
SLEEP = "import time; time.sleep(600)"
WAITS = """
import pathlib
import time

def test_that_waits():
    here = pathlib.Path(__file__).parent
    (here / "waits").touch()
    while not (here / "go").exists():
        time.sleep(0.01)
"""
LEAVES = f"""
import subprocess
import sys

from tests.plugins import no_leaks

no_leaks.SETTLE_S = 0.5

def test_that_leaves_a_process():
    line = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', {SLEEP!r}, 'boxd'])"
    subprocess.run([sys.executable, "-c", line], check=True)
"""


@pytest.fixture
def others(tmp_path: Path) -> Others:
    """One service beside this run."""
    return Others(frozenset({tmp_path / "state"}))


def start(directory: Path, text: str, *before: str) -> subprocess.Popen[str]:
    """Starts a run of a file of tests."""
    (directory / "test_it.py").write_text(text)
    return subprocess.Popen(
        [*before, *pytester.command(directory)],
        cwd=pytester.ROOT,
        env=pytester.environment(directory),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_a_service_that_starts_beside_a_run_is_no_leak(tmp_path: Path) -> None:
    run = start(tmp_path, WAITS)
    until((tmp_path / "waits").exists)
    service = subprocess.Popen([sys.executable, "-c", SLEEP, "boxd", "serve"])
    try:
        (tmp_path / "go").touch()
        output, _ = run.communicate(timeout=LIMIT_S)
    finally:
        service.kill()
        service.wait()
    assert run.returncode == 0, output


def test_a_process_whose_parent_has_ended_is_a_leak(tmp_path: Path) -> None:
    run = start(tmp_path, LEAVES, *ROOM, "sh", "-c", '"$@"; exit $?', "sh")
    output, _ = run.communicate(timeout=LIMIT_S)
    assert run.returncode != 0, output
    assert "LEAK" in output


def test_names_of_another_installation(others: Others, tmp_path: Path) -> None:
    number = Config(state_dir=tmp_path / "state").instance
    for name in ("boxd-{}-0123456789ab", "bx{}-0001", "table inet boxd_{}"):
        assert not others.own(name.format(number))
        assert others.own(name.format("0a1b2c"))
    assert not others.own_name(f"/sys/fs/cgroup/boxd-{number}/box")
    assert others.own_name("/sys/fs/cgroup/cpu/boxd-0a1b2c/box")
    assert not others.own("eth0")


def test_files_of_others(others: Others, tmp_path: Path) -> None:
    assert not others.own(str(tmp_path / "state/boxes.img"))
    assert others.own(str(tmp_path / "mine/boxes.img"))
    assert others.own(str(REPOSITORY / ".build/root"))
    assert not others.own("/run/user/0")


@pytest.mark.parametrize(
    ("line", "place"),
    [
        ("boxd serve", "/var/lib/boxd"),
        ("boxd serve --state-dir /srv/a --verbose", "/srv/a"),
        ("python boxd --state-dir=/srv/b serve", "/srv/b"),
        ("boxd --state-dir", "."),
    ],
)
def test_where_another_service_keeps_its_state(line: str, place: str) -> None:
    assert state_dir(line.split()) == Path(place)
