"""Fixtures of the end-to-end tests.

`service` (module): a whole service from `make up` on an empty state directory.
`person` (module): its first user. `stranger` (module): another one.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.e2e.service import Person, Service

if TYPE_CHECKING:
    from collections.abc import Generator


@pytest.fixture(scope="module")
def service() -> Generator[Service]:
    """`make up`, and everything of it ended afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="boxd-e2e-"))
    service = Service(folder / "state", "--preview-domain preview.internal --boxes-size 4G")
    try:
        service.start()
        yield service
    finally:
        service.close()
        shutil.rmtree(folder)


@pytest.fixture(scope="module")
def person(service: Service, tmp_path_factory: pytest.TempPathFactory) -> Person:
    """A user with a key of their own."""
    return Person(service, tmp_path_factory.mktemp("person") / "home")


@pytest.fixture(scope="module")
def stranger(service: Service, tmp_path_factory: pytest.TempPathFactory) -> Person:
    """Another user."""
    return Person(service, tmp_path_factory.mktemp("stranger") / "home")
