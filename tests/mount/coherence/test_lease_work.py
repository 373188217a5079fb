"""Leases at work: nobody wedges in a shared directory, listings under way, kept pages, light opens,
and what is left of leases at the end."""

from __future__ import annotations

import os
import random
import shutil
import tempfile
import time
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from functools import partial
from itertools import count
from typing import TYPE_CHECKING

import asyncpg
import pytest

from tests.harness.loop import run
from tests.harness.mounts.drive import until
from tests.harness.mounts.pages import PAGE, reads_from_pages
from tests.harness.mounts.visibility import Times, keep
from tests.harness.servers.backends import wait_for_the_dead
from tests.harness.simulation.histories import together
from tests.harness.volumes.leaks import rows
from tests.harness.volumes.truth import stat_of, truth_of
from wrkfs.meta.postgres.sessions import SILENCE
from wrkfs.meta.postgres.store import PostgresMeta

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.harness.http.httpdrive import HttpDrive
    from tests.harness.mounts.drive import MountProcess
    from tests.harness.volumes.truth import Truth
    from tests.plugins.figures import Figures
    from wrkfs.config import VolumeConfig

HELD_UP = 20.0
"""Seconds after which somebody was held up, on however busy a machine."""
BIG = 1200
"""Entries of a directory whose listing takes several requests."""

pytestmark = [pytest.mark.timeout(300)]


@pytest.fixture
def pair(mount: Callable[[], MountProcess]) -> tuple[Path, Path]:
    """Two mounts of one fresh drive."""
    return mount().path, mount().path


@pytest.fixture
def truth(volume: VolumeConfig) -> Iterator[Truth]:
    """A session without caches."""
    with truth_of(volume) as made:
        yield made


@pytest.mark.figure("VI-6")
def test_two_mounts_create_in_one_directory_without_a_wedge(
    pair: tuple[Path, Path], figures: Figures
) -> None:
    times = Times()
    for number in figures(ci=10, long=600):
        folder, made = f"w{number}", [0, 0]
        (pair[number % 2] / folder).mkdir()
        end = time.monotonic() + 1.0

        def create(
            who: int, folder: str = folder, made: list[int] = made, end: float = end
        ) -> None:
            while not made[who] or time.monotonic() < end:
                path = pair[who] / folder / f"{who}-{made[who]}"
                times.measured("create", path.touch)
                made[who] += 1

        together([partial(create, who) for who in range(2)])
        wanted = {f"{who}-{index}" for who in range(2) for index in range(made[who])}
        for path in pair:
            assert set(os.listdir(path / folder)) == wanted
        shutil.rmtree(pair[1 - number % 2] / folder)
    keep("VI-6-create", times)
    assert times.table()["create"]["max"] < 1000 * HELD_UP


@pytest.mark.figure("VI-6")
def test_two_mounts_do_everything_in_one_directory_without_a_wedge(
    pair: tuple[Path, Path], figures: Figures
) -> None:
    times = Times()
    (pair[0] / "w").mkdir()
    mine: list[set[str]] = [set(), set(), set(), set()]
    for number in figures(ci=10, long=600):
        end = time.monotonic() + 1.0

        def work(who: int, number: int = number, end: float = end) -> None:
            rng, here, done = random.Random(f"{number} {who}"), pair[who % 2] / "w", 0
            while not done or time.monotonic() < end:
                times.measured("step", partial(step, rng, here, mine[who], f"{who}-{number}-"))
                done += 1

        together([partial(work, who) for who in range(4)])
        for path in pair:
            assert set(os.listdir(path / "w")) == set().union(*mine)
            for name in set().union(*mine):
                assert (path / "w" / name).stat().st_nlink == 1
    keep("VI-6-mix", times)
    assert times.table()["step"]["max"] < 1000 * HELD_UP


def step(rng: random.Random, here: Path, mine: set[str], prefix: str) -> None:
    """One call on names of one's own, and looks at those of others."""
    verb = rng.choice(("create", "create", "unlink", "rename", "stat", "list", "absent"))
    fresh = f"{prefix}{rng.randrange(1 << 40)}"
    if verb == "create" or not mine:
        (here / fresh).touch()
        mine.add(fresh)
    elif verb == "absent":
        assert not (here / fresh).exists()
    elif verb == "list":
        assert mine <= set(os.listdir(here))
    else:
        name = rng.choice(sorted(mine))
        if verb == "stat":
            (here / name).stat()
            return
        mine.remove(name)
        if verb == "unlink":
            (here / name).unlink()
        else:
            (here / name).rename(here / fresh)
            mine.add(fresh)
        assert not (here / name).exists()


@pytest.mark.promise("V1")
def test_a_listing_that_pauses_leaves_nothing_stale_and_holds_nobody_up(
    pair: tuple[Path, Path], truth: Truth
) -> None:
    here, there = pair
    times, reader = Times(), truth.mounts()[1]
    (here / "d").mkdir()
    for number in range(BIG):
        os.mknod(here / "d" / f"n{number}")
    for number in range(3):
        # Nobody else takes a lease for a second after it was recalled.
        until(lambda: os.listdir(there / "d") and reader in truth.holders(ino_of(here / "d")))
        listed = os.listdir(there / "d")
        assert set(listed) == set(os.listdir(here / "d"))
        with os.scandir(there / "d") as entries:
            seen = [next(entries).name for _ in range(10)]
            gone, moved, changed, shrunk = seen[2:6]
            times.measured("unlink", (here / "d" / gone).unlink)
            times.measured("rename", partial(move, here / "d" / moved, here / "d" / f"x{number}"))
            times.measured("chmod", partial((here / "d" / changed).chmod, 0o611))
            times.measured("write", partial(write, here / "d" / shrunk))
            times.measured("create", (here / "d" / f"y{number}").touch)
            times.measured("last", (here / "d" / f"z{number}").touch)
            for name in (gone, moved, changed, shrunk, f"x{number}", f"y{number}", f"z{number}"):
                found = truth.path(f"d/{name}")
                wanted = None if found is None else found.stat
                assert look(there / "d" / name) == wanted
            seen += [entry.name for entry in entries]
        stayed = set(listed) - {gone, moved}
        assert len(seen) == len(set(seen))
        assert stayed <= set(seen)
        for name in (gone, moved, changed, shrunk, f"x{number}", f"y{number}", f"z{number}"):
            assert look(there / "d" / name) == look(here / "d" / name)
        assert set(os.listdir(there / "d")) == set(os.listdir(here / "d"))
    keep("VI-5-listing", times)
    print(times.table())
    assert max(row["max"] for row in times.table().values()) < 1000 * HELD_UP


def ino_of(path: Path) -> int:
    """Its number."""
    return path.stat().st_ino


def look(path: Path) -> object:
    """What a path shows."""
    try:
        return stat_of(os.lstat(path))
    except FileNotFoundError:
        return None


def move(path: Path, to: Path) -> None:
    """Another name."""
    path.rename(to)


def write(path: Path) -> None:
    """Some bytes."""
    path.write_bytes(b"12345")


@pytest.mark.promise("V1")
@pytest.mark.figure("VI-7")
def test_kept_pages_are_not_those_of_another_version(
    pair: tuple[Path, Path], figures: Figures
) -> None:
    pages = 16
    for number in figures(ci=20, long=1000):
        rng = random.Random(number)
        here, there = pair if number % 2 else pair[::-1]
        name = f"f{number}"
        before, after = rng.randbytes(pages * PAGE), rng.randbytes(pages * PAGE)
        (here / name).write_bytes(before)
        times = (here / name).stat()
        # Leased, so that the file opens with its pages kept as soon as it was open alone before.
        until(partial(reads_from_pages, there / name, before))
        (here / name).write_bytes(after) if number % 4 < 2 else write_over(here / name, after)
        os.utime(here / name, ns=(times.st_atime_ns, times.st_mtime_ns))
        assert (there / name).stat().st_mtime_ns == times.st_mtime_ns
        assert (there / name).stat().st_size == len(after)
        assert (there / name).read_bytes() == after
        until(partial(reads_from_pages, there / name, after))


def write_over(path: Path, data: bytes) -> None:
    """New bytes without cutting the file."""
    with path.open("r+b") as file:
        file.write(data)


WAYS = (
    *("unlink", "rename over", "rmtree", "rename across", "http delete", "http delete tree"),
    *("http put", "own unlink", "own rename over", "own rmtree"),
)


@pytest.mark.promise("V5")
@pytest.mark.figure("RA-3")
@pytest.mark.usefixtures("no_trash")
def test_a_file_that_was_opened_by_lease_keeps_its_bytes_until_it_is_closed(
    pair: tuple[Path, Path], http_drive: HttpDrive, truth: Truth, figures: Figures
) -> None:
    light = list[bool]()
    sessions = truth.mounts()
    for number in figures(ci=2 * len(WAYS), long=1000):
        rng, name, way = random.Random(number), f"d{number}", WAYS[number % len(WAYS)]
        here, there = pair if number % 3 else pair[::-1]
        opener = sessions[pair.index(there)]
        data = rng.randbytes(rng.choice((1000, 300_000)))
        (here / name / "sub").mkdir(parents=True)
        (here / name / "sub/f").write_bytes(data)
        (here / name / "other").write_bytes(b"other")
        os.listdir(there / name / "sub")
        (there / name / "sub/f").stat()
        with opened(there / name / "sub/f") as descriptor:
            ino = os.fstat(descriptor).st_ino
            light.append(opener not in truth.sustainers(ino))
            room = os.statvfs(here).f_ffree
            if number % 4 == 1:
                # This mount no longer has its attributes.
                os.setxattr(descriptor, "user.own", b"1")
            if way.startswith("http"):
                remove_by_http(http_drive.below(name), way)
            else:
                remove_by_mount((there if way.startswith("own") else here) / name, way)
            assert os.fstat(descriptor).st_nlink == 0, way
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            assert os.pread(descriptor, len(data) + 1, 0) == data, way
            os.pwrite(descriptor, b"!", len(data) - 1)
            os.fsync(descriptor)
            assert os.pread(descriptor, len(data) + 1, 0) == data[:-1] + b"!", way
            assert len(truth.sustainers(ino)) == 1, way
            before = os.statvfs(here).f_ffree
            assert before >= room - 1
        until(partial(freed, truth, here, ino, before))
        shutil.rmtree(here / name, ignore_errors=True)
    # On a busy machine a file may be told before it is looked at, see `light.SOON`: not every one.
    names = (f"l{number}" for number in count())
    until(lambda: any(light) or opened_lightly(*pair, next(names), truth))


def opened_lightly(here: Path, there: Path, name: str, truth: Truth) -> bool:
    """Whether the database does not know that the second mount has just opened a file."""
    (here / name).mkdir()
    (here / name / "f").write_bytes(b"x")
    os.listdir(there / name)
    with opened(there / name / "f") as descriptor:
        return truth.mounts()[1] not in truth.sustainers(os.fstat(descriptor).st_ino)


@pytest.mark.promise("V5")
@pytest.mark.usefixtures("no_trash")
def test_many_files_that_were_opened_by_lease_keep_their_bytes(
    pair: tuple[Path, Path], http_drive: HttpDrive
) -> None:
    here, there = pair
    for number in range(6):
        folder, names = f"d{number}", [f"f{index}" for index in range(60)]
        (here / folder).mkdir()
        for name in names:
            (here / folder / name).write_bytes(name.encode())
        os.listdir(there / folder)
        with ExitStack() as stack:
            held = {name: stack.enter_context(opened(there / folder / name)) for name in names}
            # The one that is told of last goes first.
            if number % 2:
                assert http_drive.delete(f"{folder}/{names[-1]}")
                assert http_drive.delete(folder)
            else:
                for name in reversed(names):
                    (here / folder / name).unlink()
            for name, descriptor in held.items():
                assert os.pread(descriptor, 10, 0) == name.encode()
                assert os.fstat(descriptor).st_nlink == 0


@contextmanager
def opened(path: Path) -> Iterator[int]:
    """A descriptor while the context lasts."""
    descriptor = os.open(path, os.O_RDWR)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def remove_by_mount(folder: Path, way: str) -> None:
    """Takes the last name of `sub/f` away."""
    kind = way.removeprefix("own ")
    if kind == "unlink":
        (folder / "sub/f").unlink()
    elif kind == "rename over":
        (folder / "sub/g").write_bytes(b"")
        (folder / "sub/g").rename(folder / "sub/f")
    elif kind == "rename across":
        (folder / "other").rename(folder / "sub/f")
    else:
        shutil.rmtree(folder / "sub")


def remove_by_http(folder: HttpDrive, way: str) -> None:
    """The same over HTTP."""
    if way == "http delete":
        assert folder.delete("sub/f")
    elif way == "http delete tree":
        assert folder.delete("sub")
    else:
        folder.put("sub/f", b"another")


def freed(truth: Truth, path: Path, ino: int, before: int) -> bool:
    """Whether nobody holds the file, and there is more room than before."""
    return not truth.sustainers(ino) and os.statvfs(path).f_ffree > before


def test_ended_sessions_leave_no_leases_and_no_recalls(
    mount: Callable[[], MountProcess], volume: VolumeConfig
) -> None:
    mounts = [mount(), mount()]
    for number in range(10):
        here, there = mounts[number % 2].path, mounts[1 - number % 2].path
        (here / f"d{number}").mkdir()
        os.listdir(there / f"d{number}")
        os.listdir(there)
        (here / f"d{number}/f").write_bytes(b"1")
        (there / f"d{number}/f").stat()

    def leased() -> bool:
        # A new directory comes with a lease, unless its maker's heartbeat is late.
        tempfile.mkdtemp(dir=mounts[0].path)
        return rows(volume, ["lease", "recall"])["lease"] > 0

    until(leased)
    # A mount that reaps below ends its own session too, and then cannot release inodes.
    until(lambda: rows(volume, ["sustained"])["sustained"] == 0)
    assert mounts[0].stop() == 0
    mounts[1].kill()
    mounts[1].clean()
    # Its last heartbeat may be on its way.
    wait_for_the_dead(volume)
    run(reap_all(volume))
    assert rows(volume, ["session", "lease", "recall"]) == {"session": 0, "lease": 0, "recall": 0}


async def reap_all(volume: VolumeConfig) -> None:
    """Ends the sessions of processes that are dead."""
    meta = PostgresMeta(volume, kind="reaper")
    await meta.start()
    try:
        for _ in range(2):
            await meta.reap(timedelta(0), timedelta(0))
        await meta.reap(SILENCE, timedelta(0))
    finally:
        await meta.close()


@pytest.mark.promise("V1")
def test_a_lease_is_not_taken_again_while_it_is_given_back(
    pair: tuple[Path, Path], truth: Truth, volume: VolumeConfig
) -> None:
    here, there = pair
    (here / "d").mkdir()
    for number in range(BIG):
        os.mknod(here / "d" / f"n{number}")
    until(
        lambda: os.listdir(there / "d") and truth.mounts()[1] in truth.holders(ino_of(here / "d"))
    )
    ino = ino_of(here / "d")
    with os.scandir(there / "d") as entries:
        # Whose lease is recalled waits for this listing, for two seconds.
        first = next(entries).name
        # Somebody asks for the lease and does not come back, as who was killed.
        assert run(recall(volume, ino))
        end = time.monotonic() + 3.0
        while time.monotonic() < end:
            (there / "d" / first).stat()
            assert not (there / "d/new").exists()
            time.sleep(0.02)
        (here / "d" / first).unlink()
        (here / "d/new").touch()
        assert look(there / "d" / first) is None
        assert (there / "d/new").exists()


async def recall(volume: VolumeConfig, ino: int) -> bool:
    """Asks once for the leases of a directory, for nobody."""
    connection = await asyncpg.connect(volume.meta_dsn)
    try:
        told: bool = await connection.fetchval("SELECT wrkfs.recalls(0, ARRAY[$1::bigint])", ino)
        return told
    finally:
        await connection.close()
