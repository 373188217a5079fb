"""CR-6 on stores in memory: every write verb meets an error, or its end, at every point.

After an error: the old state or the new one, the caller is told, every other descriptor of a file
that lost bytes is told as well, and the session goes on as if nothing had been. After the end of
the process: the old state or the new one. `test_failpoints_mount.py` does it to real processes.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from tests.doubles.block_store import MemoryBlocks
from tests.doubles.meta_volume import MemoryVolume
from tests.harness.simulation.crashing import POINTS, Died, Trap, guarded_filesystem, shown
from wrkfs.errors import StorageError
from wrkfs.types import ROOT_INO, Caller, Ino, RenameFlags, SetAttr

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from wrkfs.fs import Filesystem
    from wrkfs.handle import FileHandle

ME = Caller(1000, 1000)
BIG = b"0123456789abcdef" * 5000
"""More than stands in the database: it becomes an object."""


@dataclass
class Scene:
    """A volume with some files, as one session has them open."""

    fs: Filesystem
    file: FileHandle
    appender: FileHandle
    others: list[FileHandle] = field(default_factory=list)
    arm: Callable[[], None] = lambda: None

    @property
    def ino(self) -> Ino:
        """The file that the verbs work on."""
        return self.file.ino


async def publish(scene: Scene) -> None:
    """What a PUT over HTTP does."""
    handle = await scene.fs.create_unlinked(0o600, ME)
    try:
        await handle.write(0, BIG)
        await handle.fsync()
        await scene.fs.publish(handle.ino, ROOT_INO, b"other")
    finally:
        await handle.close()


async def write(scene: Scene, data: bytes) -> None:
    """write and close of one descriptor."""
    await scene.file.write(10, data)
    await scene.file.flush()


async def append(scene: Scene, data: bytes) -> None:
    """The same with O_APPEND, ended by fsync."""
    await scene.appender.write(0, data)
    await scene.appender.fsync()


async def create(scene: Scene) -> None:
    """open with O_CREAT, and close."""
    _, handle = await scene.fs.create(ROOT_INO, b"new", 0o600, os.O_RDWR, ME)
    scene.others.append(handle)


async def reopen(scene: Scene) -> None:
    """open with O_TRUNC."""
    scene.others.append(await scene.fs.open(scene.ino, os.O_WRONLY | os.O_TRUNC))


async def fsync(scene: Scene) -> None:
    """fsync of a file without dirty bytes, when a name waits to become safe."""
    await scene.fs.mkdir(ROOT_INO, b"new", 0o700, ME)
    scene.arm()
    await scene.file.fsync()


DATA: dict[str, Callable[[Scene], Awaitable[object]]] = {
    "write": lambda scene: write(scene, b"small"),
    "write blocks": lambda scene: write(scene, BIG),
    "append": lambda scene: append(scene, b"small"),
    "append blocks": lambda scene: append(scene, BIG),
}
NAMES: dict[str, Callable[[Scene], Awaitable[object]]] = {
    "create": create,
    "open and truncate": reopen,
    "publish": publish,
    "mkdir": lambda scene: scene.fs.mkdir(ROOT_INO, b"new", 0o700, ME),
    "mknod": lambda scene: scene.fs.mknod(ROOT_INO, b"new", 0o010600, 0, ME),
    "symlink": lambda scene: scene.fs.symlink(ROOT_INO, b"new", b"target", ME),
    "link": lambda scene: scene.fs.link(scene.ino, ROOT_INO, b"new"),
    "unlink": lambda scene: scene.fs.unlink(ROOT_INO, b"file"),
    "rmdir": lambda scene: scene.fs.rmdir(ROOT_INO, b"directory"),
    "remove_tree": lambda scene: scene.fs.remove_tree(ROOT_INO, b"tree"),
    "rename": lambda scene: scene.fs.rename(ROOT_INO, b"file", ROOT_INO, b"new"),
    "rename over": lambda scene: scene.fs.rename(ROOT_INO, b"file", ROOT_INO, b"other"),
    "exchange": lambda scene: scene.fs.rename(
        ROOT_INO, b"file", ROOT_INO, b"other", RenameFlags.EXCHANGE
    ),
    "truncate": lambda scene: scene.fs.setattr(scene.ino, SetAttr(size=3)),
    "extend": lambda scene: scene.fs.setattr(scene.ino, SetAttr(size=1 << 20)),
    "chmod": lambda scene: scene.fs.setattr(scene.ino, SetAttr(mode=0o600)),
    "utimens": lambda scene: scene.fs.setattr(scene.ino, SetAttr(mtime_ns=1)),
    "setxattr": lambda scene: scene.fs.setxattr(scene.ino, b"user.new", b"1"),
    "removexattr": lambda scene: scene.fs.removexattr(scene.ino, b"user.old"),
    "fsync": fsync,
}
UPLOADING = {"write blocks", "append blocks", "publish"}


def passing(point: str) -> list[str]:
    """The verbs that pass a point."""
    if point.endswith("upload"):
        return [verb for verb in [*DATA, *NAMES] if verb in UPLOADING]
    return [*DATA, *NAMES]


class Play:
    """One case: the volume, the trap, and what it shows before and after the verb."""

    def __init__(self) -> None:
        self.volume = MemoryVolume()
        self.blocks = MemoryBlocks()
        self.trap = Trap()

    async def scene(self) -> Scene:
        """The beginning: all there is safe."""
        fs = await guarded_filesystem(self.volume, self.blocks.attach(), self.trap)
        _, file = await fs.create(ROOT_INO, b"file", 0o644, os.O_RDWR, ME)
        await file.write(0, b"the old bytes of the file")
        await fs.setxattr(file.ino, b"user.old", b"0")
        _, other = await fs.create(ROOT_INO, b"other", 0o644, os.O_RDWR, ME)
        await other.close()
        await fs.mkdir(ROOT_INO, b"directory", 0o755, ME)
        tree = await fs.mkdir(ROOT_INO, b"tree", 0o755, ME)
        await fs.symlink(tree.ino, b"inside", b"target", ME)
        await fs.sync()
        appender = await fs.open(file.ino, os.O_WRONLY | os.O_APPEND)
        return Scene(fs, file, appender, [await fs.open(file.ino, os.O_RDONLY)])

    async def act(self, scene: Scene, verb: str) -> None:
        """The verb, and the point before its answer."""
        await {**DATA, **NAMES}[verb](scene)
        await self.trap("before_ack", verb)

    def aim(self, scene: Scene, verb: str, point: str, *, kill: bool) -> None:
        """Sets the trap: for the verb, or where the verb itself says."""
        if verb == "fsync":
            scene.arm = lambda: self.trap.set(point, kill=kill)
        else:
            self.trap.set(point, kill=kill)

    def state(self) -> tuple[object, ...]:
        """What everybody sees, attributes that no time moves included."""
        nodes = self.volume.nodes
        seen = shown(self.volume, self.blocks.objects)
        inos = {ino for _, ino, _, _ in seen.values() if isinstance(ino, int)}
        attrs = [(nodes[Ino(i)].attr.mode, nodes[Ino(i)].attr.nlink) for i in sorted(inos)]
        return seen, attrs


async def outcome(verb: str) -> tuple[object, ...]:
    """What the verb leads to when nothing goes wrong. Inode numbers repeat from play to play."""
    play = Play()
    scene = await play.scene()
    await play.act(scene, verb)
    return play.state()


@pytest.mark.promise("D2")
@pytest.mark.figure("CR-6")
@pytest.mark.parametrize("point", POINTS)
async def test_the_end_of_the_process_leaves_the_old_or_the_new(point: str) -> None:
    for verb in passing(point):
        await end_at(verb, point)


async def end_at(verb: str, point: str) -> None:
    """One case."""
    new = await outcome(verb)
    play = Play()
    scene = await play.scene()
    old = play.state()
    play.aim(scene, verb, point, kill=True)
    with pytest.raises(Died):
        await play.act(scene, verb)
    assert play.trap.sprung, verb
    play.volume.end(next(iter(play.volume.epochs)))
    assert play.state() == new or (play.state() == old and point != "before_ack"), verb
    fs = await guarded_filesystem(play.volume, play.blocks.attach(), Trap())
    await works(fs)
    await fs.close()


@pytest.mark.promise("D4")
@pytest.mark.figure("CR-6")
@pytest.mark.parametrize("point", POINTS)
async def test_an_error_is_told_and_the_session_goes_on(point: str) -> None:
    for verb in passing(point):
        await fail_at(verb, point)


async def fail_at(verb: str, point: str) -> None:
    """One case."""
    new = await outcome(verb)
    play = Play()
    scene = await play.scene()
    old = play.state()
    play.aim(scene, verb, point, kill=False)
    with pytest.raises(StorageError):
        await play.act(scene, verb)
    assert play.trap.sprung, verb
    assert play.state() in (old, new), verb
    await works(scene.fs)
    handles = [scene.file, scene.appender, *scene.others]
    if (verb in DATA or verb == "fsync") and point != "before_ack":
        teller = scene.appender if verb.startswith("append") else scene.file
        for handle in handles:
            if handle is not teller:
                with pytest.raises(StorageError):
                    await handle.close()
    for handle in handles:
        await handle.close()
    await scene.fs.close()
    assert not play.volume.sustained, verb


async def works(fs: Filesystem) -> None:
    """A session that is as good as new."""
    _, handle = await fs.create(ROOT_INO, b"proof", 0o600, os.O_RDWR | os.O_EXCL, ME)
    await handle.write(0, BIG)
    await handle.fsync()
    assert await handle.read(0, len(BIG)) == BIG
    await handle.close()
    await fs.unlink(ROOT_INO, b"proof")
