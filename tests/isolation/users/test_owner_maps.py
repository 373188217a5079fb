"""A directory of one user, shown to another user as its own."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from boxd.backends.host import id_maps

if TYPE_CHECKING:
    from pathlib import Path

OWNER, USER, OTHER = 1_000_001, 1_000_002, 1_000_003
PROGRAM = """
import os, sys
place = f"/proc/self/fd/{sys.argv[1]}"
os.setgroups([]); os.setresgid(*[int(sys.argv[2])] * 3); os.setresuid(*[int(sys.argv[2])] * 3)
print(open(f"{place}/kept").read())
os.rename(f"{place}/kept", f"{place}/moved")
open(f"{place}/new", "w").write("of the user")
os.unlink(f"{place}/moved")
"""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Return a private directory of OWNER with a file."""
    place = tmp_path / "journal"
    place.mkdir(mode=0o700)
    (place / "kept").write_text("of the owner")
    (place / "kept").chmod(0o600)
    for path in (place / "kept", place):
        os.chown(path, OWNER, OWNER)
    return place


def act(directory: Path, user: int) -> subprocess.CompletedProcess[str]:
    """Read, rename, create and remove files as a user, through the descriptor."""
    descriptor = id_maps.clone_for(directory, OWNER, USER)
    try:
        return subprocess.run(
            [sys.executable, "-c", PROGRAM, str(descriptor), str(user)],
            pass_fds=(descriptor,),
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        os.close(descriptor)


def test_the_user_works_in_it_and_the_owner_stays(directory: Path) -> None:
    done = act(directory, USER)
    assert (done.stdout, done.returncode) == ("of the owner\n", 0), done.stderr
    (new,) = directory.iterdir()
    assert (new.name, new.stat().st_uid, new.stat().st_gid) == ("new", OWNER, OWNER)


@pytest.mark.parametrize("user", [OWNER, OTHER])
def test_nobody_else_does(directory: Path, user: int) -> None:
    done = act(directory, user)
    assert done.returncode != 0
    assert "Permission denied" in done.stderr
    assert [path.name for path in directory.iterdir()] == ["kept"]


def test_a_link_shows_no_other_directory(directory: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(directory)
    with pytest.raises(NotADirectoryError):
        id_maps.clone_for(link, OWNER, USER)


def test_nothing_stays_mounted(directory: Path) -> None:
    with open("/proc/self/mountinfo") as table:
        before = len(table.readlines())
    act(directory, USER)
    with open("/proc/self/mountinfo") as table:
        assert len(table.readlines()) == before
