"""git at work on the drive, from one mount and from two."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.mount.programs.programs import SOURCE, digests, run

if TYPE_CHECKING:
    from pathlib import Path

    from tests.plugins.figures import Figures

pytestmark = pytest.mark.timeout(600)

ME = ("-c", "user.name=T", "-c", "user.email=t@example.org", "-c", "gc.autoDetach=false")


def git(directory: Path, *command: str | Path) -> str:
    """What git says in a repository."""
    return run("git", *ME, "-C", directory, *command)


@pytest.fixture
def repository(mounted_twice: tuple[Path, Path], request: pytest.FixtureRequest) -> Path:
    """A repository with one commit, of this test."""
    made: Path = mounted_twice[0] / request.node.name
    run("git", "init", "-q", "-b", "main", made)
    run("cp", "-a", SOURCE, made / "tree")
    git(made, "add", ".")
    git(made, "commit", "-q", "-m", "first")
    return made


def test_branches_merges_and_worktrees(repository: Path) -> None:
    other = repository.with_name("worktree")
    git(repository, "worktree", "add", "-q", other, "-b", "side")
    (other / "side").write_text("side\n")
    git(other, "add", ".")
    git(other, "commit", "-q", "-m", "side")
    (repository / "tree/message.py").write_text("changed\n")
    assert git(repository, "status", "--porcelain") == " M tree/message.py\n"
    git(repository, "stash", "-q")
    git(repository, "merge", "-q", "--no-ff", "-m", "merge", "side")
    git(repository, "stash", "pop", "-q")
    git(repository, "commit", "-q", "-a", "-m", "changed")
    git(repository, "rebase", "-q", "HEAD~1")
    git(repository, "worktree", "remove", other)
    assert not other.exists()
    assert git(repository, "worktree", "list").count("\n") == 1
    git(repository, "mv", "tree", "moved")
    git(repository, "reset", "-q", "--hard")
    git(repository, "clean", "-fdxq")
    assert git(repository, "status", "--porcelain") == ""
    git(repository, "fsck", "--strict", "--full")


def test_clones_and_garbage_collection(repository: Path) -> None:
    for number in range(10):
        (repository / "tree/charset.py").write_text(f"{number}\n" * 1000)
        git(repository, "commit", "-q", "-a", "-m", str(number))
    hard, copied = repository.with_name("hard"), repository.with_name("copied")
    run("git", "clone", "-q", repository, hard)
    run("git", "clone", "-q", "--no-local", repository, copied)
    git(repository, "gc", "-q", "--prune=now")
    git(repository, "repack", "-q", "-a", "-d", "-f")
    assert not list((repository / ".git/objects").glob("??/*"))
    for clone in (repository, hard, copied):
        git(clone, "fsck", "--strict", "--full")
        assert git(clone, "rev-list", "--count", "HEAD") == "11\n"
    git(hard, "commit", "-q", "--allow-empty", "-m", "more")
    git(hard, "push", "-q", "origin", "HEAD:pushed")
    git(copied, "fetch", "-q", "origin", "pushed")
    assert git(copied, "log", "-1", "--format=%s", "FETCH_HEAD") == "more\n"
    assert digests(hard / "tree") == digests(copied / "tree")


@pytest.mark.figure("PX-3")
def test_two_hosts_share_a_repository(
    figures: Figures, repository: Path, mounted_twice: tuple[Path, Path]
) -> None:
    """They take turns; what one has done the other's git knows, its index included."""
    hosts = repository, mounted_twice[1] / repository.name
    for number in figures(ci=6, long=2_000):
        here, there = hosts[number % 2], hosts[1 - number % 2]
        (here / f"f{number % 7}").write_text(f"{number}\n")
        status = git(there, "status", "--porcelain")
        assert status in (f"?? f{number % 7}\n", f" M f{number % 7}\n")
        git(there, "add", ".")
        git(here, "commit", "-q", "-m", str(number))
        assert git(there, "log", "-1", "--format=%s") == f"{number}\n"
        assert git(there, "status", "--porcelain") == ""
        if number % 5 == 4:
            git(here, "gc", "-q", "--prune=now")
            git(there, "fsck", "--strict")
