"""RA-1 to RA-4: many at once on the same names, from two mounts and over HTTP."""

from __future__ import annotations

import errno
import os
import random
import time
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

import pytest

from tests.harness.mounts.drive import until
from tests.harness.simulation.histories import together

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.harness.http.httpdrive import HttpDrive
    from tests.harness.mounts.drive import MountProcess
    from tests.plugins.figures import Figures

WRITERS = 16
APPENDERS = 4
LINES = 12
MIB = 1 << 20

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def pair(mount: Callable[[], MountProcess]) -> tuple[Path, Path]:
    """Two mounts of one fresh drive."""
    return mount().path, mount().path


@pytest.mark.promise("V4")
@pytest.mark.figure("RA-1")
def test_one_of_sixteen_creates_a_name(
    pair: tuple[Path, Path], http_drive: HttpDrive, figures: Figures
) -> None:
    for number in figures(ci=100, long=1000):
        name, winners = f"x{number}", list[int]()

        def create(who: int, name: str = name, winners: list[int] = winners) -> None:
            if who % 4 == 3:
                status = http_drive.ask("PUT", name, b"%d" % who, if_none_match="*").status
                assert status in (201, 412)
                if status == 201:
                    winners.append(who)
                return
            try:
                flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY
                descriptor = os.open(pair[who % 2] / name, flags)
            except FileExistsError:
                return
            winners.append(who)
            os.write(descriptor, b"%d" % who)
            os.close(descriptor)

        together([partial(create, who) for who in range(WRITERS)])
        assert len(winners) == 1
        assert {(path / name).read_bytes() for path in pair} == {b"%d" % winners[0]}
        (pair[number % 2] / name).unlink()


@pytest.mark.promise("V4")
@pytest.mark.figure("RA-1")
def test_appended_lines_are_whole_and_none_is_lost(
    pair: tuple[Path, Path], figures: Figures
) -> None:
    for number in figures(ci=100, long=1000):
        name = f"log{number}"
        (pair[0] / name).touch()

        def append(who: int, name: str = name, number: int = number) -> None:
            rng = random.Random(f"{number} {who}")
            with (pair[who % 2] / name).open("ab", buffering=0) as log:
                for line in range(LINES):
                    size = rng.choice((0, 10, 500, 70_000) if line == 3 else (0, 10, 500))
                    log.write(b"%d %d %s\n" % (who, line, b"x" * size))

        together([partial(append, who) for who in range(APPENDERS)])
        found = (pair[number % 2] / name).read_bytes().splitlines()
        seen: dict[int, list[int]] = {}
        for one in found:
            who, line, filling = one.split(b" ")
            assert filling == b"x" * len(filling)
            seen.setdefault(int(who), []).append(int(line))
        assert seen == {who: list(range(LINES)) for who in range(APPENDERS)}
        (pair[number % 2] / name).unlink()


@pytest.mark.promise("V4")
@pytest.mark.figure("RA-2")
def test_crossing_renames_make_no_cycle_and_no_orphan(
    pair: tuple[Path, Path], figures: Figures
) -> None:
    for number in figures(ci=100, long=1000):
        top = f"t{number}"
        for name in ("a/x", "b/y", "c"):
            (pair[0] / top / name).mkdir(parents=True)
        kept = [os.stat(pair[0] / top / name).st_ino for name in ("a", "a/x", "b", "c")]
        y = os.stat(pair[0] / top / "b/y").st_ino
        here, there = pair[0] / top, pair[1] / top
        together(
            [
                # Each into the other: at most one can win.
                partial(attempt, (here / "a").rename, here / "b/x2"),
                partial(attempt, (there / "b").rename, there / "a/y2"),
                # A directory into its own descendant, made so by somebody else.
                partial(attempt, (here / "c").rename, here / "a/x/c"),
                partial(attempt, (there / "a").rename, there / "c/a"),
                # Creating in a directory that is being removed.
                partial(attempt, (there / "b/y").rmdir),
                partial(attempt, (here / "b/y/new").touch),
            ]
        )
        trees = [numbers(root) for root in (here, there)]
        assert trees[0] == trees[1], "both mounts see one tree"
        assert trees[0] - Counter({y: 1}) == Counter(kept), (
            "nothing is lost, nothing is there twice"
        )
        for folder, folders, _ in os.walk(here):
            assert os.stat(folder).st_nlink == 2 + len(folders)


def attempt(call: Callable[..., object], *args: object) -> None:
    """A call that may come too late."""
    try:
        call(*args)
    except OSError as error:
        if error.errno not in (
            *(errno.ENOENT, errno.EINVAL, errno.ENOTEMPTY, errno.EEXIST, errno.ESTALE),
        ):
            raise


def numbers(root: Path) -> Counter[int]:
    """Inode numbers of all directories below, each as often as it is found."""
    return Counter(
        os.lstat(os.path.join(folder, name)).st_ino
        for folder, folders, _ in os.walk(root)
        for name in folders
    )


@pytest.mark.promise("V5")
@pytest.mark.figure("RA-3")
def test_an_unlinked_file_keeps_its_bytes_until_the_last_close(
    mount: Callable[[], MountProcess], pair: tuple[Path, Path], figures: Figures
) -> None:
    third = mount()
    for number in figures(ci=50, long=1000):
        rng = random.Random(number)
        data = rng.randbytes(rng.choice((1, 5000, 70_000, 300_000)))
        here, there = pair if number % 2 else pair[::-1]
        (here / "f").write_bytes(data)
        # In some rounds a holder dies instead of closing: what it held ends with its session.
        holder = third.path if number % 10 == 9 else there
        descriptor = os.open(holder / "f", os.O_RDWR)
        before = os.statvfs(here).f_ffree
        try:
            if number % 3 == 0:
                (here / "new").write_bytes(b"")
                (here / "new").rename(here / "f")
            else:
                (here / "f").unlink()
            assert os.fstat(descriptor).st_nlink == 0
            os.pwrite(descriptor, b"!", len(data) - 1)
            os.fsync(descriptor)
            assert os.pread(descriptor, len(data) + 1, 0) == data[:-1] + b"!"
            if holder is third.path:
                third.kill()
        finally:
            _close(descriptor)
        if holder is third.path:
            third.start()
            continue
        (here / "f").unlink(missing_ok=True)
        until(partial(has_more_room, here, before))


def has_more_room(path: Path, before: int) -> bool:
    """Whether there are more free inodes than before."""
    return os.statvfs(path).f_ffree > before


def _close(descriptor: int) -> None:
    """Of a file whose mount may be dead."""
    try:
        os.close(descriptor)
    except OSError as error:
        if error.errno != errno.ENOTCONN:
            raise


@pytest.mark.promise("V4")
@pytest.mark.figure("RA-4")
def test_renames_across_the_same_directories_never_fail(
    pair: tuple[Path, Path], figures: Figures
) -> None:
    folders = ("p", "q", "r", "s")
    for name in folders:
        (pair[0] / name).mkdir()
    # CI: a tenth of the minute, so that a round is a second's work of sixteen clients.
    for number in figures(ci=10, long=1800):
        end = time.monotonic() + 1.0
        made = [0] * WRITERS

        def shuffle(
            who: int, number: int = number, end: float = end, made: list[int] = made
        ) -> None:
            rng, path = random.Random(f"{number} {who}"), pair[who % 2]
            at = path / rng.choice(folders) / f"f{who}"
            at.touch()
            # However slow the machine is, everybody takes part.
            while not made[who] or time.monotonic() < end:
                to = path / rng.choice(folders) / f"f{who}"
                if who % 4 == 0:
                    # Directories move too, under the lock of directory moves.
                    folder = at.with_name(f"d{who}")
                    folder.mkdir()
                    folder.rename(to.with_name(f"e{who}"))
                    to.with_name(f"e{who}").rmdir()
                at.rename(to)
                at = to
                made[who] += 1
            at.unlink()

        together([partial(shuffle, who) for who in range(WRITERS)])
    for name in folders:
        assert os.listdir(pair[1] / name) == []
