"""The versions of one image on this host's disk: put there, made the current one, taken away.

`rootfs` is a symbolic link to `versions/<id>`. What is being made, and what is being removed, is
called `.unfinished-*`: it is nobody's, and the next who makes a version removes it. Who changes
anything holds the image's lock.

A version goes away only while no box stands on it. A box that is being made meanwhile is recorded
before its root is mounted; so a version is renamed first and the boxes are asked for again: either
the box is seen, and the version gets its name back, or the box finds no root and is not made.
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
    """Which versions boxes and snapshots stand on, and the names of these."""

_SHOWN = 5
"""How many of them a refusal names."""


class Versions:
    """See the module. Holds no state of its own."""

    def __init__(self, directory: Path) -> None:
        """`directory` is the image's, `STATE/images/<name>`; its name is the image's."""
        self._directory = directory
        self._link = directory / "rootfs"
        self._note = directory / "imported.json"
        self._lock = directory / "lock"

    @property
    def name(self) -> str:
        """The image's."""
        return self._directory.name

    @property
    def any(self) -> bool:
        """Whether anything of the image is on the disk."""
        return bool(self._all()) or self._note.exists()

    @property
    def present(self) -> bool:
        """Whether boxes can start from the image now."""
        return self._link.is_dir()

    @property
    def current(self) -> Path:
        """The root that new boxes get; only when `present`."""
        return self._link.resolve()

    @property
    def imported(self) -> str | None:
        """The description of an image that was imported; None for others."""
        try:
            return str(json.loads(self._note.read_text(encoding="utf-8"))["description"])
        except FileNotFoundError:
            return None

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Holds the image's lock; makes the image's directory. Conflict when another holds it.

        The kernel lets go of it when the process dies.
        """
        lock = self._acquired()
        try:
            yield
        finally:
            os.close(lock)

    def fresh(self, prefix: str) -> Path:
        """The name of a new version, which is not there yet."""
        return self._directory / "versions" / f"{prefix}-{secrets.token_hex(4)}"

    def publish(self, version: Path, description: str | None) -> None:
        """Makes a version the current one. `description` is an imported image's; None: built."""
        if description is None:
            self._note.unlink(missing_ok=True)
        else:
            note = self._note.with_name(".imported.new")
            note.write_text(json.dumps({"description": description}), encoding="utf-8")
            note.replace(self._note)
        self._point(version.relative_to(self._directory))

    def prune(self, users: Users) -> list[Path]:
        """Removes versions that are neither the current one nor used; returns what went."""
        removed = []
        for version in self._all():
            if self.present and version == self.current:
                continue
            if version not in users() and self._taken_away([version], users):
                removed.append(version)
        return removed

    def remove(self, users: Users) -> None:
        """Removes the image with all its versions. Conflict naming the boxes that stand on them."""
        self._refuse_used(users())
        target = self._link.readlink() if self._link.is_symlink() else None
        self._link.unlink(missing_ok=True)
        if not self._taken_away(self._all(), users):
            if target is not None:
                self._point(target)
            self._refuse_used(users())
            raise Conflict(f"a box of image {self.name!r} was just made; try again")
        self._note.unlink(missing_ok=True)
        remove_unfinished(self._directory / "versions")
        with suppress(OSError):
            # What the operator put in there stays.
            (self._directory / "versions").rmdir()
            self._lock.unlink()
            self._directory.rmdir()

    def _point(self, target: Path) -> None:
        fresh = self._directory / ".rootfs.new"
        fresh.unlink(missing_ok=True)
        fresh.symlink_to(target)
        fresh.replace(self._link)

    def _all(self) -> list[Path]:
        return sorted((self._directory / "versions").glob("[!.]*"))

    def _refuse_used(self, standing: Mapping[Path, Sequence[str]]) -> None:
        boxes = [box for version in self._all() for box in standing.get(version, ())]
        if boxes:
            more = f" and {len(boxes) - _SHOWN} more" if len(boxes) > _SHOWN else ""
            them = "them" if len(boxes) > 1 else "it"
            raise Conflict(
                f"image {self.name!r} is used by {', '.join(boxes[:_SHOWN])}{more}; "
                f"remove {them} first"
            )

    def _taken_away(self, versions: list[Path], users: Users) -> bool:
        """False, and nothing changed, when a box stands on one of them after all."""
        aside = {version: unfinished(version.parent) for version in versions}
        used = True
        try:
            for version, name in aside.items():
                version.rename(name)
            used = not users().keys().isdisjoint(aside)
        finally:
            if used:
                for version, name in aside.items():
                    with suppress(FileNotFoundError):
                        name.rename(version)
        if used:
            return False
        for name in aside.values():
            remove_tree(name)
        return True

    def _acquired(self) -> int:
        while True:
            (self._directory / "versions").mkdir(parents=True, exist_ok=True)
            try:
                lock = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except FileNotFoundError:
                continue  # just removed with its image
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(lock)
                raise Conflict(
                    f"image {self.name!r} is being built, imported or removed by "
                    "another process; try again when that has ended"
                ) from None
            if self._is_lock(lock):
                return lock
            os.close(lock)

    def _is_lock(self, descriptor: int) -> bool:
        """Whether the file is still there: an image is removed with its lock."""
        try:
            return os.path.samestat(os.fstat(descriptor), self._lock.stat())
        except FileNotFoundError:
            return False


def unfinished(directory: Path) -> Path:
    """A new name in `directory` for what is being made or removed."""
    return directory / f".unfinished-{secrets.token_hex(4)}"


def remove_unfinished(directory: Path) -> None:
    """Removes what was interrupted. Refuses with Unavailable when something is mounted there,
    because removing through a mount would reach the host."""
    for path in directory.glob(".unfinished-*"):
        remove_tree(path)


def remove_tree(path: Path) -> None:
    """Removes a tree of a foreign make. Unavailable when something is mounted in it.

    By `rm`: a tree may be deeper than the longest path, and than functions can call one another.
    """
    if f" {path.resolve()}/" in Path("/proc/self/mountinfo").read_text(errors="replace"):
        raise Unavailable(f"something is mounted below {path}; unmount it")
    done = subprocess.run(
        ["rm", "-rf", "--one-file-system", "--", str(path)], capture_output=True, check=False
    )
    if done.returncode != 0:
        words = done.stderr.decode(errors="replace").strip()[-300:]
        raise Unavailable(f"{path} cannot be removed: {words}")
