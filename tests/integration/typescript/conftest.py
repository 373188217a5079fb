"""Fixtures of the tests of the TypeScript client."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from tests.harness.clients.typescript import SOURCE, Node, built_client
from tests.harness.service.user import User

if TYPE_CHECKING:
    from pathlib import Path

    from tests.harness.service.daemon import Daemon


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """Return Node.js in a project that has the client and its tests."""
    (tmp_path / "node_modules").symlink_to(built_client() / "node_modules")
    shutil.copytree(SOURCE / "tests", tmp_path / "tests")
    return Node(tmp_path)


@pytest.fixture
def account(daemon: Daemon, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the variables of a new account of a real service."""
    user = User(daemon, tmp_path_factory.mktemp("user"))
    key = user.ssh("cli", "apikeys create tests")
    return {"BOXD_URL": f"http://127.0.0.1:{daemon.api_port}", "BOXD_API_KEY": key}
