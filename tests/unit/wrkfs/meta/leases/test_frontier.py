"""The directories that come next, and the credit of a reader."""

from __future__ import annotations

from wrkfs.meta.leases.frontier import Credit, Frontier
from wrkfs.types import Ino


def inos(*numbers: int) -> list[Ino]:
    return [Ino(number) for number in numbers]


def test_children_take_the_place_of_their_directory() -> None:
    frontier = Frontier()
    frontier.replace(Ino(1), inos(2, 3, 4))
    frontier.replace(Ino(3), inos(31, 32))
    assert frontier.following(Ino(9)) == inos(2, 31, 32, 4)
    assert frontier.following(Ino(31)) == inos(32, 4)
    assert Ino(3) not in frontier
    frontier.discard(Ino(2))
    frontier.discard(Ino(2))
    assert frontier.following(Ino(9)) == inos(31, 32, 4)


def test_no_directory_is_in_it_twice() -> None:
    frontier = Frontier()
    frontier.replace(Ino(1), inos(2, 3))
    frontier.replace(Ino(1), inos(3, 4))
    frontier.append(Ino(2))
    assert frontier.following(Ino(9)) == inos(4, 2, 3)


def test_the_farthest_directories_leave_first() -> None:
    frontier = Frontier(most=3)
    frontier.replace(Ino(1), inos(2, 3, 4, 5))
    frontier.replace(Ino(2), inos(21, 22))
    assert frontier.following(Ino(9)) == inos(21, 22, 3)
    assert len(frontier) == 3
    frontier.append(Ino(6))
    assert Ino(6) not in frontier
    assert Ino(5) not in frontier


def test_credit_has_bounds() -> None:
    credit = Credit(4, 10)
    credit.spend(5)
    assert credit.left == 0
    credit.earn(11)
    assert credit.left == 10
    credit.halve()
    assert credit.left == 5
