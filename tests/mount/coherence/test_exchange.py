"""RENAME_EXCHANGE on two hosts: which calls take effect, and which may be told done without it.

The kernel looks the old name up and then the new one. When another host moves the file from the
one to the other in between, both names are one file for it, which it leaves alone and answers 0:
the mount hears of no rename. That needs a change, on another host and at the same moment, that
moves the file between exactly these two names.
"""

from __future__ import annotations

import threading
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import pytest

from tests.harness.mounts.watched_mount import WatchedMount
from tests.harness.simulation.histories import together
from tests.model.views import RENAME_EXCHANGE, rename2

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from wrkfs.config import VolumeConfig

ROUNDS = 40

pytestmark = [pytest.mark.timeout(300), pytest.mark.promise("V4")]


Pair: TypeAlias = "tuple[WatchedMount, WatchedMount]"


@contextmanager
def watched(
    volume: VolumeConfig, directories: pytest.TempPathFactory, *options: str
) -> Iterator[Pair]:
    """Two mounts of a drive that count requests of their kernels."""
    with ExitStack() as stack:
        pair = []
        for _ in range(2):
            pair.append(WatchedMount(volume, directories.mktemp("mount"), *options))
            stack.callback(pair[-1].clean)
        yield pair[0], pair[1]


@pytest.fixture
def counted(volume: VolumeConfig, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Two mounts of one fresh drive."""
    with watched(volume, tmp_path_factory) as pair:
        yield pair


@pytest.fixture
def asked(volume: VolumeConfig, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """The same. Their kernels ask for every name, and a test can stop a look-up."""
    with watched(volume, tmp_path_factory, "--old-kernel", "--hold-lookups") as pair:
        yield pair


def renames(mounts: Pair) -> int:
    """RENAME2 requests that the kernels of both mounts have sent."""
    return sum(mount.ask().requests["rename"] for mount in mounts)


def rename(directory: Path, one: str, other: str) -> None:
    """rename(2) of a name of a directory."""
    (directory / one).rename(directory / other)


def exchange(directory: Path, one: str, other: str) -> None:
    """renameat2(2) of two names of a directory."""
    rename2(directory / one, directory / other, RENAME_EXCHANGE)


def filled(mounts: tuple[Path, Path], directory: str, names: str) -> tuple[Path, Path]:
    """A directory on both hosts, in which each name has a file that holds the name."""
    here, there = (mount / directory for mount in mounts)
    here.mkdir()
    for name in names:
        (here / name).write_text(name)
    return here, there


def order(directory: Path, names: str) -> str:
    """What the files hold, by name."""
    return "".join((directory / name).read_text() for name in names)


def test_exchanges_one_after_the_other_take_effect(mounted_twice: tuple[Path, Path]) -> None:
    pair = filled(mounted_twice, "serial", "ab")
    for number in range(ROUNDS):
        exchange(pair[number % 2], "a", "b")
        wanted = "ab" if number % 2 else "ba"
        assert [order(directory, "ab") for directory in pair] == [wanted, wanted]


def test_exchanges_at_once_of_other_names_take_effect(mounted_twice: tuple[Path, Path]) -> None:
    here, there = filled(mounted_twice, "other", "abcd")
    for number in range(ROUNDS):
        together([partial(exchange, here, "a", "b"), partial(exchange, there, "c", "d")])
        assert order(there, "abcd") == ("abcd" if number % 2 else "badc")


def test_exchanges_at_once_that_share_one_name_take_effect(
    mounted_twice: tuple[Path, Path],
) -> None:
    here, there = filled(mounted_twice, "shared", "abc")
    for _ in range(ROUNDS):
        a, b, c = list(order(here, "abc"))
        together([partial(exchange, here, "a", "b"), partial(exchange, there, "b", "c")])
        assert order(there, "abc") in (b + c + a, c + a + b)


@pytest.mark.parametrize("second", ["ab", "ba"], ids=["equal", "reversed"])
def test_an_exchange_without_effect_is_one_that_the_kernel_never_asked_for(
    counted: Pair, second: str
) -> None:
    """Each request RENAME2 takes effect, and of two exchanges the kernels ask for at least one."""
    here, there = filled((counted[0].path, counted[1].path), f"pair-{second}", "ab")
    names, total = "ab", renames(counted)
    for _ in range(ROUNDS):
        together([partial(exchange, here, "a", "b"), partial(exchange, there, *second)])
        before, total = total, renames(counted)
        assert total - before in (1, 2)
        names = names if total - before == 2 else names[::-1]
        assert order(here, "ab") == order(there, "ab") == names


@pytest.mark.parametrize("move", ["exchange", "rename"])
def test_a_kernel_that_finds_one_file_under_both_names_asks_for_no_rename(
    asked: Pair, move: str
) -> None:
    """The cause: another host moves the file between the look-ups of the two names."""
    here, there = filled((asked[0].path, asked[1].path), f"held-{move}", "ab")
    call = exchange if move == "exchange" else rename
    before = renames(asked)
    with asked[0].held_lookup("b") as held:
        moving = threading.Thread(target=call, args=(here, "a", "b"))
        moving.start()
        held.reached()
        call(there, "a", "b")
    moving.join(60)
    assert not moving.is_alive()
    assert renames(asked) == before + 1, "that of the other host"
    assert (there / "b").read_text() == "a"
    assert (there / "a").exists() is (move == "exchange")
