"""The command line sets logging up; after each test it is as before."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """Handlers and levels."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    for name in ("boxd", "wrkfs"):
        logging.getLogger(name).setLevel(logging.NOTSET)
