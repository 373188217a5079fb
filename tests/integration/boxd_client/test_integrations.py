"""The integrations with frameworks for agents: with the published packages, before a real service.

The programs in `programs` have the checks. They run in an environment that `scripts/agentlibs`
makes, because the frameworks need another websockets than the service.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.harness.service.daemon import open_daemon
from tests.harness.service.user import User

if TYPE_CHECKING:
    from tests.harness.service.daemon import Daemon

pytestmark = pytest.mark.timeout(300)

ROOT = Path(__file__).parents[3]
CLIENT = ROOT / "clients/python"
PROGRAMS = Path(__file__).parent / "programs"
PYTHON = ROOT / ".build/agentlibs/python/bin/python"
OPENAI_AGENTS = (
    "commands", "files", "attachment", "resumption", "workspaces", "snapshots",
    "bad_archives", "no_previews", "agent",
)  # fmt: skip
DEEPAGENTS = ("commands", "files", "terminals", "agent")


def _check(program: str, name: str, url: str, key: str, home: Path) -> None:
    done = subprocess.run(
        [PYTHON, "-P", PROGRAMS / program, name],
        env={
            "BOXD_URL": url,
            "BOXD_API_KEY": key,
            "HOME": str(home),
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(CLIENT),
        },
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", OPENAI_AGENTS)
def test_openai_agents(url: str, key: str, tmp_path: Path, name: str) -> None:
    _check("openai_agents.py", name, url, key, tmp_path)


@pytest.mark.parametrize("name", DEEPAGENTS)
def test_deepagents(url: str, key: str, tmp_path: Path, name: str) -> None:
    _check("deepagents.py", name, url, key, tmp_path)


def test_ports_of_openai_agents(image_rootfs: Path, tmp_path: Path) -> None:
    with open_daemon(image_rootfs, flags=("--preview-domain", "preview.internal")) as daemon:
        key = User(daemon, tmp_path).ssh("cli", "apikeys create tests")
        _check("openai_agents.py", "ports", _url(daemon), key, tmp_path)


@pytest.mark.parametrize(
    ("module", "package"), [("openai_agents", "openai-agents"), ("deepagents", "deepagents")]
)
def test_without_the_extra(module: str, package: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"import boxd_client.integrations.{module}"],
        env={"PYTHONPATH": str(CLIENT)},
        capture_output=True,
        text=True,
    )
    assert f"needs the package {package}; run: pip install 'boxd-client[{package}]'" in done.stderr


def test_the_types_agree_with_the_published_packages() -> None:
    files = [*CLIENT.glob("boxd_client/integrations/*.py"), *PROGRAMS.glob("*.py")]
    done = subprocess.run(
        [
            *(sys.executable, "-m", "mypy", "--python-executable", PYTHON),
            *("--follow-imports", "silent", "--cache-dir", ROOT / ".mypy_cache/agentlibs"),
            *files,
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout


def _url(daemon: Daemon) -> str:
    return f"http://127.0.0.1:{daemon.api_port}"
