"""Fixtures of the tests of the Python client before a real service."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest

from tests.harness.clients.forms import blocking, concurrent
from tests.harness.service.user import User

if TYPE_CHECKING:
    from tests.harness.clients.forms import Form
    from tests.harness.service.daemon import Daemon


@pytest.fixture(scope="module")
def key(daemon: Daemon, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return an API key of a new account."""
    return User(daemon, tmp_path_factory.mktemp("user")).ssh("cli", "apikeys create tests")


@pytest.fixture(scope="module")
def url(daemon: Daemon) -> str:
    """Return the URL of the service."""
    return f"http://127.0.0.1:{daemon.api_port}"


@pytest.fixture(params=[blocking, concurrent], ids=["sync", "async"])
def client(request: pytest.FixtureRequest, url: str, key: str) -> Form:
    """Return one form of the client, which gets only the call."""
    made: Form = partial(request.param, url, key=key, timeout=60.0)
    return made
