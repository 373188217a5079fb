"""Publishes and removes the versions of an image on this host's disk.

`rootfs` is a symbolic link to `versions/<id>`. A version that is being created or removed is called
`.unfinished-*`; creating the next version removes such remains. All changes hold the lock of the
image.

A version is removed only if no box uses it. A box may be created at the same time; its record is
written before its root is mounted. So the removal first renames the version and then reads the
records again. Either it finds the box and renames the version back, or the box finds no root and is
not created.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import subprocess
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from boxd.errors import Conflict, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    Users = Callable[[], Mapping[Path, Sequence[str]]]
    """Returns the names of the boxes and snapshots that use each version."""

NOTE = "imported.json"
"""The file with the description of an imported image."""
_MAX_NAMES = 5
"""Maximum number of these names that an error lists."""


class Versions:
    """The versions of one image. All state is on the disk."""

    def __init__(self, directory: Path) -> None:
        """`directory` is the directory of the image, `STATE/images/<name>`."""
        self._directory = directory
        self._link = directory / "rootfs"
        self._note = directory / NOTE
        self._lock = directory / "lock"

    @property
    def name(self) -> str:
        """The name of the image."""
        return self._directory.name

    @property
    def any(self) -> bool:
        """Whether the disk contains anything of the image."""
        return bool(self._all()) or self._note.exists()

    @property
    def present(self) -> bool:
        """Whether boxes can start from the image now."""
        return self._link.is_dir()

    @property
    def current(self) -> Path:
        """The root of new boxes. Valid only if `present`."""
        return self._link.resolve()

    @property
    def imported(self) -> str | None:
        """The description of an imported image; None for other images."""
        try:
            return str(json.loads(self._note.read_text(encoding="utf-8"))["description"])
        except FileNotFoundError:
            return None

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock of the image, and create its directory if needed.

        Raises Conflict while another process holds the lock. The kernel releases the lock when the
        process dies.
        """
        lock = self._acquire()
        try:
            yield
        finally:
            os.close(lock)

    def new_path(self, prefix: str) -> Path:
        """Return an unused path for a new version."""
        return self._directory / "versions" / f"{prefix}-{secrets.token_hex(4)}"

    def publish(self, version: Path, description: str | None) -> None:
        """Make a version the current one. Only an imported image has a `description`."""
        if description is None:
            self._note.unlink(missing_ok=True)
        else:
            note = self._note.with_name(".imported.new")
            note.write_text(json.dumps({"description": description}), encoding="utf-8")
            note.chmod(0o644)
            note.replace(self._note)
        self._set_current(version.relative_to(self._directory))

    def prune(self, users: Users) -> list[Path]:
        """Remove versions that are neither current nor in use; return their paths."""
        removed = []
        for version in self._all():
            if self.present and version == self.current:
                continue
            if version not in users() and self._remove_unused([version], users):
                removed.append(version)
        return removed

    def remove(self, users: Users) -> None:
        """Remove the image with all its versions. Raises Conflict with the boxes that use them."""
        self._check_unused(users())
        target = self._link.readlink() if self._link.is_symlink() else None
        self._link.unlink(missing_ok=True)
        if not self._remove_unused(self._all(), users):
            if target is not None:
                self._set_current(target)
            self._check_unused(users())
            raise Conflict(f"a box of image {self.name!r} was just created; try again")
        self._note.unlink(missing_ok=True)
        remove_unfinished(self._directory / "versions")
        with suppress(OSError):
            # If the operator has other files here, they stay, and so does the directory.
            (self._directory / "versions").rmdir()
            self._lock.unlink()
            self._directory.rmdir()

    def _set_current(self, target: Path) -> None:
        new_link = self._directory / ".rootfs.new"
        new_link.unlink(missing_ok=True)
        new_link.symlink_to(target)
        new_link.replace(self._link)

    def _all(self) -> list[Path]:
        return sorted((self._directory / "versions").glob("[!.]*"))

    def _check_unused(self, users: Mapping[Path, Sequence[str]]) -> None:
        names = [name for version in self._all() for name in users.get(version, ())]
        if names:
            more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
            them = "them" if len(names) > 1 else "it"
            raise Conflict(
                f"image {self.name!r} is used by {', '.join(names[:_MAX_NAMES])}{more}; "
                f"remove {them} first"
            )

    def _remove_unused(self, versions: list[Path], users: Users) -> bool:
        """Remove versions.

        If a box uses one of them after all, change nothing and return False.
        """
        new_paths = {version: unfinished(version.parent) for version in versions}
        in_use = True
        try:
            for version, path in new_paths.items():
                version.rename(path)
            in_use = not users().keys().isdisjoint(new_paths)
        finally:
            if in_use:
                for version, path in new_paths.items():
                    with suppress(FileNotFoundError):
                        path.rename(version)
        if in_use:
            return False
        for path in new_paths.values():
            remove_tree(path)
        return True

    def _acquire(self) -> int:
        while True:
            (self._directory / "versions").mkdir(parents=True, exist_ok=True)
            make_visible(self._directory)
            try:
                lock = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except FileNotFoundError:
                continue  # another process has just removed the image
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(lock)
                raise Conflict(
                    f"image {self.name!r} is being built, imported or removed by "
                    "another process; try again when it has finished"
                ) from None
            if self._is_lock(lock):
                return lock
            os.close(lock)

    def _is_lock(self, descriptor: int) -> bool:
        """Return whether the open file is still the lock.

        The removal of an image also removes its lock.
        """
        try:
            return os.path.samestat(os.fstat(descriptor), self._lock.stat())
        except FileNotFoundError:
            return False


def make_visible(image: Path) -> None:
    """Let every user list the directories of an image: the front has no rights.

    Only root can reach the state directory around them. Raises OSError.
    """
    for directory in (image.parent, image, image / "versions"):
        if directory.is_dir():
            directory.chmod(0o755)
    with suppress(FileNotFoundError):
        (image / NOTE).chmod(0o644)


def unfinished(directory: Path) -> Path:
    """Return a new path in `directory` for a version that is being created or removed."""
    return directory / f".unfinished-{secrets.token_hex(4)}"


def remove_unfinished(directory: Path) -> None:
    """Remove the remains of interrupted changes.

    Raises Unavailable if something is mounted below them, because the removal would then delete
    files of the host.
    """
    for path in directory.glob(".unfinished-*"):
        remove_tree(path)


def remove_tree(path: Path) -> None:
    """Remove an untrusted tree. Raises Unavailable if something is mounted in it."""
    # `rm` also removes trees that are deeper than the longest path and than Python's recursion.
    if f" {path.resolve()}/" in Path("/proc/self/mountinfo").read_text(errors="replace"):
        raise Unavailable(f"something is mounted below {path}; unmount it")
    process = subprocess.run(
        ["rm", "-rf", "--one-file-system", "--", str(path)], capture_output=True, check=False
    )
    if process.returncode != 0:
        output = process.stderr.decode(errors="replace").strip()[-300:]
        raise Unavailable(f"{path} cannot be removed: {output}")
