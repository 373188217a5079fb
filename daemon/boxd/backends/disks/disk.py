"""A box's disk: an overlay of the image's root (read-only) and the box's own layer.

Each box's disk has a home directory with the directory `layer`. `layer` contains `upper`, which the
box writes, and `work`, which belongs to the overlay. A snapshot has a directory with the same
content. The subclasses decide what a layer is and whether its size is limited: directories here
(`PlainDisk`), btrfs subvolumes in `subvolume`.

While a box is suspended, its directory has the image of its memory, `memory`. The image is always
on the file system of the state directory, and may use the space that `require_memory` allows.
*Measured* on a host with ext4, for 100 MB: there CRIU takes 226 ms, and the sync to the disk 97 ms
more. On the volume of the layers, the times are 414 and 233 ms.

The service creates directories under another name, and renames them when complete. So if the host
dies, either the old or the new directory remains. A copied layer gets a new `work`, because the old
one refers to files of the original layer.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import os
import stat
import subprocess
from abc import ABC, abstractmethod
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, ParamSpec, TypeVar

from boxd.backends.host.mounts import unmount_everywhere
from boxd.backends.host.overlays import LayerOfAnother, mount_overlay, require_unused
from boxd.backends.host.run import ENVIRONMENT
from boxd.backends.host.trees import copy_tree, remove_attribute, remove_tree
from boxd.cancellation import ended
from boxd.errors import DiskFull, NotFound

if TYPE_CHECKING:
    from collections.abc import Callable

    from boxd.backends.disks.image_size import ImageSize
    from boxd.backends.host.id_maps import IdMap
    from boxd.backends.host.names import BoxPaths

MIB = 1 << 20
FLOOR_MOST, FLOOR_LEAST, FLOOR_PART = 2048 * MIB, 64 * MIB, 8
"""Free space that new disks leave to existing boxes: 1/FLOOR_PART of the disk, within bounds."""
ORIGIN = "trusted.overlay.origin"
_AT_ONCE = 2
"""Maximum number of concurrent copies."""
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
_libc = ctypes.CDLL(None, use_errno=True)
_P = ParamSpec("_P")
_T = TypeVar("_T")


class Disk(ABC):
    """Creates, mounts and removes disks of boxes, and their snapshots. All calls are idempotent.

    A layer may be copied or replaced only while its box is frozen or stopped. All methods raise
    DiskFull if there is not enough space.
    """

    kind: ClassVar[str]
    """Name of this kind of disk in the records of boxes."""

    def __init__(self, snapshots_dir: Path) -> None:
        self._snapshots = snapshots_dir
        self._copies = asyncio.Semaphore(_AT_ONCE)

    @abstractmethod
    def limits_size(self) -> bool:
        """Return whether each box has a size limit, so that a full disk affects one box only."""

    @abstractmethod
    def home(self, paths: BoxPaths) -> Path:
        """Return the directory of the box's layer."""

    def upper(self, paths: BoxPaths) -> Path:
        """Return the directory that contains everything that the box has written."""
        return self.home(paths) / "layer/upper"

    def memory_dir(self, paths: BoxPaths) -> Path:
        """Return the directory of the box's memory image, which does not count towards its limit.

        The directory exists only when the image is complete. Incomplete images are next to it,
        under names that start with its name.
        """
        return paths.directory / "memory"

    def require_memory(self, paths: BoxPaths, needed: ImageSize) -> None:
        """Raise DiskFull if an image of that size would leave too little space for other boxes."""
        least, free = _room(paths.directory)
        if free - needed.total < least:
            files = f" and {needed.files // MIB} MiB for its deleted open files"
            raise DiskFull(
                "the host's disk has no room for the memory of the box: it needs "
                f"{needed.memory // MIB} MiB{files if needed.files >= MIB else ''}. "
                f"{free // MIB} MiB are free, of which {least // MIB} MiB are reserved. "
                "Remove boxes or snapshots that you do not need"
            )

    def require_room(self, paths: BoxPaths) -> None:
        """Raise DiskFull if an image that is being written uses space reserved for other boxes."""
        least, free = _room(paths.directory)
        if free < least:
            raise DiskFull(
                "the host's disk has no room for the memory of the box: only "
                f"{free // MIB} MiB are free now, of which {least // MIB} MiB are reserved. "
                "Remove boxes or snapshots that are not needed"
            )

    async def memory_used(self, paths: BoxPaths) -> int:
        """Return the bytes of the box's memory image on the host's disk, or 0 without one."""
        return await in_thread(_allocated, self.memory_dir(paths))

    async def create(self, paths: BoxPaths, limit_mb: int) -> None:
        """Create an empty layer of at most `limit_mb` MiB (0: no limit)."""
        await in_thread(self._create, self.home(paths), limit_mb)

    async def mount(
        self, paths: BoxPaths, rootfs: Path, limit_mb: int, by: IdMap | None = None
    ) -> None:
        """Mount the root, even if the layer is full: at `paths.root` with the ids of `by`.

        Without `by`, mount it at `paths.old_root`. Raises Unavailable with the kernel's error.
        """
        del limit_mb
        layer = self.home(paths) / "layer"
        root, other = (paths.old_root, paths.root) if by is None else (paths.root, paths.old_root)
        # After a change between these, boxes may still have a copy of the mount at the other place.
        await in_thread(unmount_everywhere, other)
        try:
            await mount_overlay(root, rootfs, layer, by)
        except LayerOfAnother:  # the image or the layer has been moved
            await in_thread(_forget_origins, layer)
            await mount_overlay(root, rootfs, layer, by)

    async def require_unused(self, paths: BoxPaths, rootfs: Path) -> None:
        """Wait until no process of the host uses an unmounted root. Raises RootHeld."""
        layer = self.home(paths) / "layer"
        if layer.exists():
            await require_unused(paths.old_root, rootfs, layer)

    async def remove(self, paths: BoxPaths) -> None:
        """Unmount the root, and remove the layer and the memory image.

        The unmount is lazy, so a reader on the host cannot prevent the removal.
        """
        await self.remove_layer(paths)
        await in_thread(_clear_memory, paths.directory)

    async def remove_layer(self, paths: BoxPaths) -> None:
        """Unmount the root and remove the layer. The memory image stays."""
        for root in (paths.root, paths.old_root):
            unmount_everywhere(root)
        await in_thread(self._clear, self.home(paths))

    async def used(self, paths: BoxPaths) -> int:
        """Return the bytes of the layer on the host's disk."""
        return await in_thread(self._used, self.home(paths) / "layer")

    async def snapshot(
        self,
        paths: BoxPaths,
        snapshot_id: str,
        *,
        memory: Path | None = None,
        disk_only: bool = False,
    ) -> None:
        """Copy layer and memory image into a snapshot. An existing snapshot is not changed.

        `memory` is an image to use instead of the box's, on the same file system. With `disk_only`
        the snapshot gets no image.
        """
        image = None if disk_only else memory or self.memory_dir(paths)
        async with self._copies:
            await in_thread(self._snapshot, self.home(paths), snapshot_id, image)

    async def clone(self, snapshot_id: str, paths: BoxPaths, limit_mb: int) -> None:
        """Like `create`, but with layer and memory image of a snapshot. Raises NotFound."""
        place = self._require_snapshot(snapshot_id)
        async with self._copies:
            await in_thread(self._clone, place, paths, limit_mb)

    async def restore(self, snapshot_id: str, paths: BoxPaths, limit_mb: int) -> None:
        """Replace layer and memory image of a box with a snapshot's. The root must not be mounted.

        Raises NotFound.
        """
        place = self._require_snapshot(snapshot_id)
        async with self._copies:
            await in_thread(self._restore, place, paths, limit_mb)

    async def drop_snapshot(self, snapshot_id: str) -> None:
        """Remove a snapshot. Boxes created from it are not affected."""
        await in_thread(self._drop, self._snapshots / snapshot_id)

    async def snapshot_used(self, snapshot_id: str) -> int:
        """Return the bytes of a snapshot's layer and memory image on disk, shared ones included.

        Raises NotFound.
        """
        place = self._require_snapshot(snapshot_id)
        layer = await in_thread(_allocated, place / "layer" / "upper")
        return layer + await in_thread(_allocated, self.snapshot_memory(snapshot_id))

    def snapshots(self) -> list[str]:
        """Return the ids of all complete snapshots."""
        return sorted(path.name for path in self._snapshots.glob("*") if not path.suffix)

    def snapshot_memory(self, snapshot_id: str) -> Path:
        """Return the path of a snapshot's memory image. A stopped box's snapshot has none."""
        return self._memory_of(self._snapshots / snapshot_id)

    async def sweep(self) -> None:
        """Remove the remains of interrupted work."""
        for path in self._snapshots.glob("*.*"):
            await in_thread(self._drop, path)

    # The kind of layer, and the place of a snapshot's memory. All of these block.

    @abstractmethod
    def _make(self, layer: Path, limit_mb: int) -> None:
        """Create an empty layer, or set the limit of an existing one."""

    @abstractmethod
    def _copy(self, layer: Path, copy: Path, limit_mb: int) -> None:
        """Copy a layer. The copy's `work` may be missing or the old one."""

    @abstractmethod
    def _destroy(self, layer: Path) -> None:
        """Remove a layer, complete or not."""

    @abstractmethod
    def _used(self, layer: Path) -> int:
        """Return the bytes that a layer uses; 0 if it does not exist."""

    def _memory_of(self, place: Path) -> Path:
        """Return the memory image of the snapshot at `place`, complete or not."""
        return place / "memory"

    # Steps, run in threads.

    def _create(self, home: Path, limit_mb: int) -> None:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        layer = home / "layer"
        if not layer.exists():
            require_space(home)
        self._make(layer, limit_mb)
        for part in ("upper", "work"):
            (layer / part).mkdir(mode=0o755, exist_ok=True)

    def _snapshot(self, home: Path, snapshot_id: str, memory: Path | None) -> None:
        place = self._snapshots / snapshot_id
        if place.exists():
            return
        self._snapshots.mkdir(mode=0o700, parents=True, exist_ok=True)
        require_space(self._snapshots)
        new = place.with_suffix(".new")
        self._drop(new)
        new.mkdir(mode=0o700)
        try:
            if memory is not None:
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
        """Copy the snapshot's layer to a temporary place in a box's home, with a new `work`."""
        new = home / "layer.new"
        self._destroy(new)
        self._copy(place / "layer", new, limit_mb)
        _new_work(new)
        return new

    def _take_memory(self, image: Path, target: Path) -> None:
        """Copy a memory image, if it exists and the target does not."""
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

    def _require_snapshot(self, snapshot_id: str) -> Path:
        place = self._snapshots / snapshot_id
        if not place.is_dir():
            raise NotFound(f"the backend has no snapshot {snapshot_id}")
        return place


class PlainDisk(Disk):
    """Layers are directories. Only the size of the host's disk limits them."""

    kind = "plain"

    def limits_size(self) -> bool:
        """False: directories have no size limit."""
        return False

    def home(self, paths: BoxPaths) -> Path:
        """Return the box's own directory."""
        return paths.directory

    def _make(self, layer: Path, limit_mb: int) -> None:
        del limit_mb  # cannot be enforced on a directory
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
    """Return the bytes that new disks leave free on a file system of this size."""
    return min(FLOOR_MOST, max(FLOOR_LEAST, size // FLOOR_PART))


def require_space(directory: Path, needed: int = 0) -> None:
    """Raise DiskFull if `needed` bytes would leave too little free space on a file system."""
    least, free = _room(directory)
    if free - needed < least:
        raise DiskFull(
            f"the host's disk for boxes is full: {free // MIB} MiB are free, and {least // MIB} MiB"
            " are reserved for existing boxes; remove boxes or snapshots that are not needed"
        )


def _room(directory: Path) -> tuple[int, int]:
    """Return the bytes to keep free, and the free bytes, of a directory's file system."""
    status = os.statvfs(directory)
    free, size = (status.f_frsize * blocks for blocks in (status.f_bavail, status.f_blocks))
    return floor(size), free


def write_beneath(root: Path, name: str, content: str) -> bool:
    """Write `root`/etc/`name`. The tree below `root` is untrusted.

    The function follows no links: `etc` must be a real directory, and the file is replaced, not
    opened. Returns False if the box has put something else in place of `etc` or the file.
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
    """Run a blocking step in a thread. A cancellation is raised after the step has ended.

    Raises DiskFull if the disk is full.
    """
    work = asyncio.to_thread(function, *arguments, **named)
    try:
        return await ended(asyncio.ensure_future(work))
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise DiskFull(
            "the host's disk for boxes became full; remove boxes or snapshots"
        ) from error


def _new_work(layer: Path) -> None:
    remove_tree(layer / "work")
    (layer / "work").mkdir(mode=0o755)


def _forget_origins(layer: Path) -> None:
    """Remove a layer's references by handle to files of its image.

    The references by name remain and are sufficient. A wrong handle would hide the image's part of
    a directory.
    """
    _new_work(layer)
    remove_attribute(layer / "upper", ORIGIN)


def _share(image: Path, new: Path) -> None:
    """Copy a memory image with hard links, because its files never change."""
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
    """Give a complete directory its name, durably."""
    new.rename(place)
    _sync(place.parent)


def _aside(path: Path) -> Path:
    """Rename a directory before its removal, so that a partial one is never used."""
    trash_path = path.with_name(f"{path.name}.gone")
    if path.exists():
        remove_tree(trash_path)
        path.rename(trash_path)
    return trash_path


def _exchange(new: Path, place: Path) -> None:
    """Exchange two names atomically. If `place` does not exist, only rename `new` to it."""
    names = os.fsencode(new), os.fsencode(place)
    flags = ctypes.c_uint(_RENAME_EXCHANGE)
    if _libc.renameat2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], flags) == 0:
        _sync(place.parent)
        return
    number = ctypes.get_errno()
    if number != errno.ENOENT:
        raise OSError(number, os.strerror(number), str(place))
    _publish(new, place)


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _allocated(directory: Path) -> int:
    """Return the bytes that a tree takes on the disk. The tree may change meanwhile."""
    try:
        return _sum_of(directory)
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
    # A tree deeper than any path. `du` walks from directory to directory, which takes longer.
    command = ("du", "--summarize", "--block-size=1", "--", str(directory))
    answer = subprocess.run(command, env=ENVIRONMENT, stdout=subprocess.PIPE, check=False)
    return int(answer.stdout.split()[0])


def _sum_of(directory: Path) -> int:
    total = 0
    stack = [directory]
    while stack:
        try:
            entries = list(os.scandir(stack.pop()))
        except FileNotFoundError:
            continue  # removed in the meantime
        for entry in entries:
            try:
                status = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            total += status.st_blocks * 512
            if stat.S_ISDIR(status.st_mode):
                stack.append(Path(entry.path))
    return total
