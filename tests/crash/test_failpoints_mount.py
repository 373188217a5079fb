"""CR-6 on real mounts: every write verb of a program, with SIGKILL or an error at every point.

The same calls on a local directory say what the old and the new state are.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import pytest

from tests.harness.mounts.failing_mount import FailingMount

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from wrkfs.config import VolumeConfig

    Picture: TypeAlias = dict[str, tuple[object, ...]]

BIG = b"0123456789abcdef" * 20_000
"""More than stands in the database: it becomes an object."""
TOLD = {errno.ENOTCONN, errno.ECONNABORTED, errno.EIO, errno.ENODEV}
DATA = ("commit", "durable_commit")


@dataclass(frozen=True)
class Verb:
    """What a program does in a directory; the calls of store and Filesystem that it leads to."""

    act: Callable[[Path], None]
    commits: tuple[str, ...]
    answers: tuple[str, ...]
    uploads: bool = False


def write(path: Path, data: bytes, flags: int, *, sync: bool) -> None:
    """open, write, and what makes it safe; closed in any case."""
    descriptor = os.open(path, flags | os.O_WRONLY)
    try:
        os.write(descriptor, data)
        if sync:
            os.fsync(descriptor)
    except BaseException:
        try:
            os.close(descriptor)
        except OSError as error:
            assert error.errno in TOLD  # noqa: PT017 the first error goes on
        raise
    os.close(descriptor)


VERBS = {
    "create": Verb(lambda d: (d / "new").touch(), ("create",), ("create",)),
    "mkdir": Verb(lambda d: (d / "new").mkdir(), ("mkdir",), ("mkdir",)),
    "mkfifo": Verb(lambda d: os.mkfifo(d / "new"), ("mknod",), ("mknod",)),
    "symlink": Verb(lambda d: (d / "new").symlink_to("x"), ("symlink",), ("symlink",)),
    "link": Verb(lambda d: (d / "new").hardlink_to(d / "file"), ("link",), ("link",)),
    "unlink": Verb(lambda d: (d / "file").unlink(), ("unlink",), ("unlink",)),
    "rmdir": Verb(lambda d: (d / "directory").rmdir(), ("rmdir",), ("rmdir",)),
    "rename": Verb(lambda d: os.rename(d / "file", d / "new"), ("rename",), ("rename",)),
    "rename over": Verb(lambda d: os.rename(d / "file", d / "other"), ("rename",), ("rename",)),
    "chmod": Verb(lambda d: (d / "file").chmod(0o600), ("setattr",), ("setattr",)),
    "truncate": Verb(lambda d: os.truncate(d / "file", 7), ("setattr",), ("setattr",)),
    "O_TRUNC": Verb(lambda d: (d / "file").open("wb").close(), ("open",), ("open",)),
    "write, close": Verb(lambda d: write(d / "file", b"small", 0, sync=False), DATA, ("flush",)),
    "write blocks, close": Verb(
        lambda d: write(d / "file", BIG, 0, sync=False), DATA, ("flush",), uploads=True
    ),
    "write blocks, fsync": Verb(
        lambda d: write(d / "file", BIG, 0, sync=True), DATA, ("fsync",), uploads=True
    ),
    "append, fsync": Verb(
        lambda d: write(d / "file", b"more", os.O_APPEND, sync=True), DATA, ("fsync",)
    ),
    "write O_SYNC": Verb(
        lambda d: write(d / "file", b"small", os.O_SYNC, sync=False),
        DATA,
        ("write", "write_from_kernel"),
    ),
}


def cases() -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Verb, point, calls."""
    for name, verb in VERBS.items():
        if verb.uploads:
            yield name, "before_upload", ("put",)
            yield name, "after_upload", ("put",)
        yield name, "before_commit", verb.commits
        yield name, "after_commit", verb.commits
        yield name, "before_ack", verb.answers


@pytest.fixture
def drive(volume: VolumeConfig, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FailingMount]:
    """A mount with failpoints."""
    made = FailingMount(volume, tmp_path_factory.mktemp("mount"))
    yield made
    made.clean()


@pytest.mark.promise("D2")
@pytest.mark.figure("CR-6")
@pytest.mark.timeout(600)
def test_the_end_of_the_process_leaves_the_old_or_the_new(
    drive: FailingMount, tmp_path: Path
) -> None:
    for number, (name, point, calls) in enumerate(cases()):
        case = f"{name} {point}"
        old, new = states(name, tmp_path)
        scene = prepare(drive.path / f"c{number}")
        drive.set(point, "kill", *calls)
        assert told(VERBS[name], scene) in TOLD, case
        assert not drive.trap.exists(), case
        drive.wait_dead()
        drive.start()
        found = picture(scene)
        allowed = (new,) if point == "before_ack" else (old, new)
        assert found in allowed, f"{case}: {found}"
        shutil.rmtree(scene)


@pytest.mark.promise("D4")
@pytest.mark.figure("CR-6")
@pytest.mark.timeout(600)
def test_an_error_is_told_and_the_mount_goes_on(drive: FailingMount, tmp_path: Path) -> None:
    for number, (name, point, calls) in enumerate(cases()):
        case = f"{name} {point}"
        old, new = states(name, tmp_path)
        scene = prepare(drive.path / f"c{number}")
        drive.set(point, "raise", *calls)
        assert told(VERBS[name], scene) == errno.EIO, case
        assert not drive.trap.exists(), case
        found = picture(scene)
        assert found in (old, new), f"{case}: {found}"
        shutil.rmtree(scene)
        prepare(scene)
        assert picture(scene) == old, case


def told(verb: Verb, scene: Path) -> int | None:
    """The errno that the program gets; None when it is told of a success."""
    try:
        verb.act(scene)
    except OSError as error:
        return error.errno
    return None


def states(name: str, local: Path) -> tuple[Picture, Picture]:
    """Before and after the verb, on a local filesystem."""
    scene = prepare(local / "scene")
    old = picture(scene)
    VERBS[name].act(scene)
    new = picture(scene)
    shutil.rmtree(scene)
    return old, new


def prepare(scene: Path) -> Path:
    """A directory with all that the verbs need, safe."""
    scene.mkdir()
    (scene / "file").write_bytes(b"the old bytes of the file")
    (scene / "other").write_bytes(b"another file")
    (scene / "directory").mkdir()
    return scene


def picture(scene: Path) -> Picture:
    """What a program sees."""
    found: Picture = {}
    for path in sorted(scene.iterdir()):
        seen = path.lstat()
        content: object = None
        if stat.S_ISREG(seen.st_mode):
            content = (seen.st_size, path.read_bytes())
        elif stat.S_ISLNK(seen.st_mode):
            content = os.readlink(path)
        found[path.name] = (seen.st_mode, seen.st_nlink, content)
    return found
