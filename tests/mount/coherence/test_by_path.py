"""A path is answered by what is there, or ENOENT, while another host changes what it leads to."""

from __future__ import annotations

import errno
import os
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

import pytest

from tests.harness.simulation.histories import together

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.harness.mounts.drive import MountProcess

CHANGES = {"replaced": 2500, "unlinked": 500}
"""Files that come and go under one name while other calls ask for it.

Without the hold of the second walk 1,000 changes gave 0 to 17 stale answers when each file was
replaced, and 88 or more when each was unlinked as well.
"""

pytestmark = pytest.mark.timeout(300)


def _opened(path: Path) -> None:
    os.close(os.open(path, os.O_RDONLY))


def _opened_or_created(path: Path) -> None:
    os.close(os.open(path, os.O_RDWR | os.O_CREAT))


CALLS: dict[str, Callable[[Path], object]] = {
    "lstat": os.lstat,
    "open": _opened,
    "open again": _opened,
    "create": _opened_or_created,
    "truncate": lambda path: os.truncate(path, 0),
    "listxattr": os.listxattr,
}


@pytest.mark.promise("V4")
@pytest.mark.usefixtures("no_trash")
@pytest.mark.parametrize("way", CHANGES)
def test_no_call_by_path_finds_a_stale_inode(mount: Callable[[], MountProcess], way: str) -> None:
    """Without trash a removed inode is gone at once; a trash answers for it for ten seconds."""
    here, there = mount().path, mount().path
    (here / "name").touch()
    errors = Counter[str]()
    ended = False

    def change() -> None:
        nonlocal ended
        try:
            for _ in range(CHANGES[way]):
                (here / "new").touch()
                (here / "new").rename(here / "name")
                if way == "unlinked":
                    (here / "name").unlink(missing_ok=True)
        finally:
            ended = True

    def ask(verb: str) -> None:
        while not ended:
            try:
                CALLS[verb](there / "name")
            except OSError as error:
                errors[f"{verb} {errno.errorcode[error.errno or 0]}"] += 1

    together([change, *(partial(ask, verb) for verb in CALLS)])
    allowed = {f"{verb} ENOENT" for verb in CALLS} if way == "unlinked" else set[str]()
    assert not errors.keys() - allowed, errors
