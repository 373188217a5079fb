"""Users of the service's processes: no two installations share one, and files follow them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from boxd.errors import Unavailable
from boxd.sandbox.id_claims import FIRST, IdClaims
from boxd.sandbox.users import BLOCKS, OBJECT_SERVER, SIZE, ServiceUsers, hand_over

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

USER, OTHER = 990_010, 990_011


@pytest.fixture
def installation(tmp_path: Path) -> Callable[[str], ServiceUsers]:
    """Return a function that sets up the users of an installation."""

    def set_up(instance: str) -> ServiceUsers:
        running = tmp_path / "run"
        (running / f"boxd-{instance}").mkdir(parents=True, exist_ok=True)
        claims = IdClaims(instance, tmp_path / "claims", (tmp_path / "subuid",), running)
        users = ServiceUsers(instance, tmp_path / instance, claims)
        users.setup()
        return users

    return set_up


def test_installations_have_different_users(installation: Callable[[str], ServiceUsers]) -> None:
    first, second = installation("00000001"), installation("00000101")
    assert abs(first.of(0) - second.of(0)) >= SIZE
    for users in (first, second):
        assert FIRST - BLOCKS * SIZE <= users.of(0) <= users.of(SIZE - 1) < FIRST


def test_an_installation_keeps_its_users(installation: Callable[[str], ServiceUsers]) -> None:
    first = installation("00000001").of(OBJECT_SERVER)
    installation("00000002")
    assert installation("00000001").of(OBJECT_SERVER) == first


def test_ids_of_others_are_left_alone(
    installation: Callable[[str], ServiceUsers], tmp_path: Path
) -> None:
    (tmp_path / "subuid").write_text(f"someone:{FIRST - BLOCKS * SIZE}:{(BLOCKS - 1) * SIZE}\n")
    assert installation("00000001").of(0) == FIRST - SIZE
    with pytest.raises(Unavailable, match="no user ids are left for the service"):
        installation("00000002")


@pytest.mark.parametrize("number", [-1, SIZE])
def test_users_outside_the_block(installation: Callable[[str], ServiceUsers], number: int) -> None:
    with pytest.raises(ValueError, match="no user"):
        installation("00000001").of(number)


def test_a_new_directory_belongs_to_its_user(tmp_path: Path) -> None:
    hand_over(tmp_path / "a" / "b", USER)
    status = (tmp_path / "a" / "b").stat()
    assert (status.st_uid, status.st_gid, status.st_mode & 0o777) == (USER, USER, 0o700)
    assert (tmp_path / "a").stat().st_uid == 0


def test_everything_in_a_directory_follows_the_user(tmp_path: Path) -> None:
    place = tmp_path / "place"
    (place / "deep" / "er").mkdir(parents=True)
    (place / "deep" / "er" / "file").write_text("x")
    hand_over(place, USER)
    hand_over(place, OTHER)
    for path in (place, *place.rglob("*")):
        assert (path.stat().st_uid, path.stat().st_gid) == (OTHER, OTHER), path


def test_a_hostile_owner_wins_no_file_of_the_host(tmp_path: Path) -> None:
    host = tmp_path / "host"
    host.write_text("x")
    (tmp_path / "hostdir").mkdir()
    place = tmp_path / "place"
    place.mkdir()
    (place / "link").symlink_to(host)
    (place / "directory").symlink_to(tmp_path / "hostdir")
    os.link(host, place / "hard")
    os.mkfifo(place / "fifo")
    hand_over(place, USER)
    assert (host.stat().st_uid, (tmp_path / "hostdir").stat().st_uid) == (0, 0)
    assert not (place / "hard").exists()
    top = tmp_path / "top"
    top.symlink_to(tmp_path / "hostdir")
    with pytest.raises(OSError, match=r"Not a directory|Too many levels"):
        hand_over(top, USER)
    assert (tmp_path / "hostdir").stat().st_uid == 0
