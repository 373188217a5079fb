"""A box's disk: an overlay of the image's root (never written) and the box's own layer.

Every box has a home for its disk, with the directory `layer` (in it `upper`, what the box wrote,
and `work`, the overlay's own); a snapshot has a place with the same. What a layer is, and whether
its size is limited, differs: directories here (`PlainDisk`), btrfs subvolumes in `subvolume_disk`.

While a box sleeps its directory has the image of its memory, `memory`. That is always on the file
system of the state directory, and takes what `require_memory` leaves it: *measured* on a host whose
own is ext4, 100 MB by CRIU take 226 ms there and 97 more until they are on the disk, 414 and 233 on
the volume of the layers.

What is made of parts is made under another name and renamed, so that a host that dies leaves the
old or the new. A copied layer gets a new `work`: the old one names files of the layer that it was
made for.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import os
import stat
from abc import ABC, abstractmethod
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, ParamSpec, TypeVar

from boxd.backends.boxlocks import ended
from boxd.backends.mounts import LayerOfAnother, mount_overlay, unmount
from boxd.backends.trees import copy_tree, remove_attribute, remove_tree
from boxd.errors import DiskFull, NotFound

if TYPE_CHECKING:
    from collections.abc import Callable

    from boxd.backends.hostnames import BoxPaths

MIB = 1 << 20
FLOOR_MOST, FLOOR_LEAST, FLOOR_PART = 2048 * MIB, 64 * MIB, 8
"""Free space that new disks leave to those that exist: one part in so many, within bounds."""
ORIGIN = "trusted.overlay.origin"
_AT_ONCE = 2
"""Copies under way at the same time."""
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
_libc = ctypes.CDLL(None, use_errno=True)
_P = ParamSpec("_P")
_T = TypeVar("_T")


class Disk(ABC):
    """Makes, mounts and removes the disks of boxes, and snapshots of them. All is idempotent.

    A layer may be copied or replaced only while its box stands still. What fails for want of space
    raises DiskFull.
    """

    kind: ClassVar[str]
    """How a box's record names the disk that it has."""

    def __init__(self, snapshots_dir: Path) -> None:
        self._snapshots = snapshots_dir
        self._copies = asyncio.Semaphore(_AT_ONCE)

    @abstractmethod
    def limits_size(self) -> bool:
        """Whether a box that fills its disk fails alone."""

    @abstractmethod
    def home(self, paths: BoxPaths) -> Path:
        """The directory of the box's layer and memory image."""

    def upper(self, paths: BoxPaths) -> Path:
        """What the box has written."""
        return self.home(paths) / "layer/upper"

    def memory_dir(self, paths: BoxPaths) -> Path:
        """The box's memory image, outside its limit.

        It exists only as a whole; parts of one are made beside it, under names that start with
        its own.
        """
        return paths.directory / "memory"

    def require_memory(self, paths: BoxPaths, wanted: int) -> None:
        """Raises DiskFull when so many bytes of memory would not leave enough to all others."""
        least, free = _room(paths.directory)
        if free - wanted < least:
            raise DiskFull(
                f"the memory of the box has no room on the host's disk: it is {wanted // MIB} MiB, "
                f"{free // MIB} MiB are free, of which {least // MIB} MiB are left to others; "
                "remove boxes or snapshots that are not needed"
            )

    async def create(self, paths: BoxPaths, limit_mb: int) -> None:
        """Makes an empty layer of at most `limit_mb` MiB (0: no limit), and the mount point."""
        paths.root.mkdir(mode=0o755, parents=True, exist_ok=True)
        await in_thread(self._create, self.home(paths), limit_mb)

    async def mount(self, paths: BoxPaths, rootfs: Path, limit_mb: int) -> None:
        """Mounts the root at `paths.root`; a layer that is full is mounted none the less.

        Raises Unavailable with the kernel's words.
        """
        del limit_mb
        layer = self.home(paths) / "layer"
        places = (paths.root, rootfs, layer / "upper", layer / "work")
        try:
            await mount_overlay(*places)
        except LayerOfAnother:  # image or layer were moved to another place
            await in_thread(_forget_origins, layer)
            await mount_overlay(*places)

    async def remove(self, paths: BoxPaths) -> None:
        """Unmounts the root, and removes the layer and the memory image with all that is in them.

        Lazily: a reader on the host must not keep a box from being removed.
        """
        await self.remove_layer(paths)
        await in_thread(_clear_memory, paths.directory)

    async def remove_layer(self, paths: BoxPaths) -> None:
        """The same, but the memory image stays."""
        unmount(paths.root, lazily=True)
        await in_thread(self._clear, self.home(paths))
        with suppress(FileNotFoundError):
            paths.root.rmdir()

    async def used(self, paths: BoxPaths) -> int:
        """Bytes that the layer takes on the host's disk."""
        return await in_thread(self._used, self.home(paths) / "layer")

    async def snapshot(
        self, paths: BoxPaths, snapshot_id: str, *, memory: Path | None = None
    ) -> None:
        """Keeps layer and memory image as they are. A snapshot of that id stays as it is.

        `memory` is another image than that of the box, on the same file system.
        """
        image = memory or self.memory_dir(paths)
        async with self._copies:
            await in_thread(self._snapshot, self.home(paths), snapshot_id, image)

    async def clone(self, snapshot_id: str, paths: BoxPaths, limit_mb: int) -> None:
        """As `create`, with layer and memory image of a snapshot. Raises NotFound."""
        paths.root.mkdir(mode=0o755, parents=True, exist_ok=True)
        place = self._whole(snapshot_id)
        async with self._copies:
            await in_thread(self._clone, place, paths, limit_mb)

    async def restore(self, snapshot_id: str, paths: BoxPaths, limit_mb: int) -> None:
        """Gives a box, whose root is not mounted, the snapshot's layer and memory image.

        Raises NotFound.
        """
        place = self._whole(snapshot_id)
        async with self._copies:
            await in_thread(self._restore, place, paths, limit_mb)

    async def drop_snapshot(self, snapshot_id: str) -> None:
        """Removes a snapshot; boxes made from it go on."""
        await in_thread(self._drop, self._snapshots / snapshot_id)

    async def snapshot_used(self, snapshot_id: str) -> int:
        """Bytes of layer and memory image of a snapshot on the host's disk, shared ones included.

        Raises NotFound.
        """
        place = self._whole(snapshot_id)
        layer = await in_thread(_allocated, place / "layer" / "upper")
        return layer + await in_thread(_allocated, self.snapshot_memory(snapshot_id))

    def snapshots(self) -> list[str]:
        """Ids of all whole snapshots."""
        found = (path.name for path in self._snapshots.glob("*") if not path.suffix)
        return sorted(found)

    def snapshot_memory(self, snapshot_id: str) -> Path:
        """The memory image of a snapshot; there is none when it was taken of a stopped box."""
        return self._memory_of(self._snapshots / snapshot_id)

    async def sweep(self) -> None:
        """Removes what work that was cut short has left."""
        for path in self._snapshots.glob("*.*"):
            await in_thread(self._drop, path)

    # What a layer is, and where the memory of a snapshot is. All of this blocks.

    @abstractmethod
    def _make(self, layer: Path, limit_mb: int) -> None:
        """An empty layer, or the right limit for one that is there."""

    @abstractmethod
    def _copy(self, layer: Path, copy: Path, limit_mb: int) -> None:
        """A copy; its `work` may be missing or the old one."""

    @abstractmethod
    def _destroy(self, layer: Path) -> None:
        """Removes a layer, also part of one."""

    @abstractmethod
    def _used(self, layer: Path) -> int:
        """Bytes taken; 0 for a layer that is not there."""

    def _memory_of(self, place: Path) -> Path:
        """The memory image of the snapshot at a place, or of what is left of one."""
        return place / "memory"

    # Steps, in threads.

    def _create(self, home: Path, limit_mb: int) -> None:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        layer = home / "layer"
        if not layer.exists():
            require_space(home)
        self._make(layer, limit_mb)
        for part in ("upper", "work"):
            (layer / part).mkdir(mode=0o755, exist_ok=True)

    def _snapshot(self, home: Path, snapshot_id: str, memory: Path) -> None:
        place = self._snapshots / snapshot_id
        if place.exists():
            return
        self._snapshots.mkdir(mode=0o700, parents=True, exist_ok=True)
        require_space(self._snapshots)
        new = place.with_suffix(".new")
        self._drop(new)
        new.mkdir(mode=0o700)
        try:
            self._take_memory(memory, self._memory_of(new))
            self._copy(home / "layer", new / "layer", 0)
            _publish(new, place)
        except BaseException:
            self._drop(new)
            raise

    def _clone(self, place: Path, paths: BoxPaths, limit_mb: int) -> None:
        home = self.home(paths)
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        if (home / "layer").exists():
            return
        require_space(home)
        self._take_memory(self._memory_of(place), self.memory_dir(paths))
        _publish(self._fresh(place, home, limit_mb), home / "layer")

    def _restore(self, place: Path, paths: BoxPaths, limit_mb: int) -> None:
        home, memory = self.home(paths), self.memory_dir(paths)
        new = self._fresh(place, home, limit_mb)
        remove_tree(_aside(memory))
        _exchange(new, home / "layer")
        self._destroy(new)
        self._take_memory(self._memory_of(place), memory)

    def _fresh(self, place: Path, home: Path, limit_mb: int) -> Path:
        """The snapshot's layer beside the box's own, with a work directory of its own."""
        new = home / "layer.new"
        self._destroy(new)
        self._copy(place / "layer", new, limit_mb)
        _new_work(new)
        return new

    def _take_memory(self, image: Path, target: Path) -> None:
        """Copies a memory image, if there is one and none at its target."""
        if not image.exists() or target.exists():
            return
        new = target.with_name(f"{target.name}.copy")
        remove_tree(new)
        _share(image, new)
        _publish(new, target)

    def _drop(self, place: Path) -> None:
        if place.suffix != ".gone" and place.exists():
            place = _aside(place)
        self._clear(place)
        _clear_memory(place)
        with suppress(FileNotFoundError):
            place.rmdir()

    def _clear(self, home: Path) -> None:
        for path in home.glob("layer*"):
            self._destroy(path)
        for path in home.glob(".*.links"):
            remove_tree(path)

    def _whole(self, snapshot_id: str) -> Path:
        place = self._snapshots / snapshot_id
        if not place.is_dir():
            raise NotFound(f"the backend has no snapshot {snapshot_id}")
        return place


class PlainDisk(Disk):
    """Layers are directories: nothing caps their size but the host's disk."""

    kind = "plain"

    def limits_size(self) -> bool:
        """No."""
        return False

    def home(self, paths: BoxPaths) -> Path:
        """The box's own directory."""
        return paths.directory

    def _make(self, layer: Path, limit_mb: int) -> None:
        del limit_mb  # nothing here could enforce it
        layer.mkdir(mode=0o755, exist_ok=True)

    def _copy(self, layer: Path, copy: Path, limit_mb: int) -> None:
        del limit_mb
        require_space(copy.parent, _allocated(layer / "upper"))
        copy.mkdir(mode=0o755)
        copy_tree(layer / "upper", copy / "upper")

    def _destroy(self, layer: Path) -> None:
        remove_tree(layer)

    def _used(self, layer: Path) -> int:
        return _allocated(layer / "upper")


def floor(size: int) -> int:
    """Bytes of a file system of that size which new disks leave free."""
    return min(FLOOR_MOST, max(FLOOR_LEAST, size // FLOOR_PART))


def require_space(directory: Path, wanted: int = 0) -> None:
    """Raises DiskFull when `wanted` bytes would not leave enough free where a directory stands."""
    least, free = _room(directory)
    if free - wanted < least:
        raise DiskFull(
            f"the host's disk for boxes is full: {free // MIB} MiB are free, and {least // MIB} MiB"
            " are left to boxes that exist; remove boxes or snapshots that are not needed"
        )


def _room(directory: Path) -> tuple[int, int]:
    """Bytes that are to stay free where a directory stands, and those that are."""
    status = os.statvfs(directory)
    free, size = (status.f_frsize * blocks for blocks in (status.f_bavail, status.f_blocks))
    return floor(size), free


def write_beneath(root: Path, name: str, content: str) -> bool:
    """Writes `root`/etc/`name` although the tree below `root` is the box's and may be hostile.

    Nothing the box planted is followed: `etc` must be a real directory, and the file is replaced,
    not opened. Returns False when the box has made something else of `etc`.
    """
    top = os.open(root, os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        with suppress(FileExistsError):
            os.mkdir("etc", 0o755, dir_fd=top)
        try:
            etc = os.open("etc", os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=top)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENOTDIR):
                return False
            raise
    finally:
        os.close(top)
    try:
        return _replace(etc, name, content)
    finally:
        os.close(etc)


def _replace(directory: int, name: str, content: str) -> bool:
    temporary = f".{name}.boxd"
    with suppress(FileNotFoundError):
        os.unlink(temporary, dir_fd=directory)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(temporary, flags, 0o644, dir_fd=directory), "w") as file:
        file.write(content)
    try:
        os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
    except IsADirectoryError:
        os.unlink(temporary, dir_fd=directory)
        return False
    return True


async def in_thread(function: Callable[_P, _T], *arguments: _P.args, **named: _P.kwargs) -> _T:
    """A blocking step. When it is cancelled, it has ended before the cancellation goes on."""
    work = asyncio.to_thread(function, *arguments, **named)
    try:
        return await ended(asyncio.ensure_future(work))
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise DiskFull(
            "the host's disk for boxes became full meanwhile; remove boxes or snapshots"
        ) from error


def _new_work(layer: Path) -> None:
    remove_tree(layer / "work")
    (layer / "work").mkdir(mode=0o755)


def _forget_origins(layer: Path) -> None:
    """Takes away what a layer knows of its image's files by their handles.

    The names stay, and they are enough; a handle that is wrong would hide the image's part of a
    directory.
    """
    _new_work(layer)
    remove_attribute(layer / "upper", ORIGIN)


def _share(image: Path, new: Path) -> None:
    """Copies an image of memory by giving its files, which nobody ever changes, more names."""
    new.mkdir(mode=0o700)
    try:
        for file in image.iterdir():
            (new / file.name).hardlink_to(file)
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EMLINK, errno.EPERM):
            raise
        remove_tree(new)
        copy_tree(image, new)
    else:
        _sync(new)


def _clear_memory(directory: Path) -> None:
    for path in directory.glob("memory*"):
        remove_tree(path)


def _publish(new: Path, place: Path) -> None:
    """Gives what is complete its name, also for a host that dies at once."""
    new.rename(place)
    _sync(place.parent)


def _aside(path: Path) -> Path:
    """Renames what is to be removed, so that nobody takes what is left of it for the whole."""
    gone = path.with_name(f"{path.name}.gone")
    if path.exists():
        remove_tree(gone)
        path.rename(gone)
    return gone


def _exchange(one: Path, other: Path) -> None:
    """Two names change places in one step; the first one takes the other's if that is missing."""
    names = os.fsencode(one), os.fsencode(other)
    places = (_AT_FDCWD, names[0], _AT_FDCWD, names[1])
    if _libc.renameat2(*places, ctypes.c_uint(_RENAME_EXCHANGE)) == 0:
        _sync(other.parent)
        return
    number = ctypes.get_errno()
    if number != errno.ENOENT:
        raise OSError(number, os.strerror(number), str(other))
    _publish(one, other)


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _allocated(directory: Path) -> int:
    total = 0
    stack = [directory]
    while stack:
        try:
            entries = list(os.scandir(stack.pop()))
        except FileNotFoundError:
            continue  # removed meanwhile
        for entry in entries:
            try:
                status = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            total += status.st_blocks * 512
            if stat.S_ISDIR(status.st_mode):
                stack.append(Path(entry.path))
    return total
