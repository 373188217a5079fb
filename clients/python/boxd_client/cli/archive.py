"""Tar archives as streams: local files to bytes, and bytes of a box to files. Boxes may be hostile.

Members outside the target, links that lead out of it, and special files are not created.
"""

from __future__ import annotations

import os
import stat
import tarfile
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from boxd_client.errors import BoxError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import BinaryIO

BLOCK = 512
PIECE = 256 * 1024


class CopyFailed(BoxError):
    """A file could not be copied."""


def total_size(source: Path) -> int:
    """Return the size of a file, or of all files below a directory, in bytes."""
    if not source.is_dir():
        return source.stat().st_size
    return sum(
        path.lstat().st_size for path in _below(source) if stat.S_ISREG(path.lstat().st_mode)
    )


def pack(source: Path, name: str, skipped: Callable[[str], None]) -> Iterator[bytes]:
    """Yield a tar archive of a file or directory, whose top member is called `name`.

    `skipped` gets the path of each file that is neither regular, a directory nor a link.
    """
    for path in (source, *_below(source)):
        # The named source may be a link to what shall be copied; links below it stay links.
        status = path.stat() if path == source else path.lstat()
        relative = path.relative_to(source).as_posix()
        member = tarfile.TarInfo(name if relative == "." else f"{name}/{relative}")
        member.mode, member.mtime = stat.S_IMODE(status.st_mode), int(status.st_mtime)
        if stat.S_ISDIR(status.st_mode):
            member.type = tarfile.DIRTYPE
        elif stat.S_ISLNK(status.st_mode):
            member.type, member.linkname = tarfile.SYMTYPE, str(path.readlink())
        elif stat.S_ISREG(status.st_mode):
            yield from _file(path, member, status.st_size)
            continue
        else:
            skipped(str(path))
            continue
        yield member.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
    yield bytes(2 * BLOCK)


def _file(path: Path, member: tarfile.TarInfo, size: int) -> Iterator[bytes]:
    member.size = size
    with path.open("rb") as file:
        yield member.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
        rest = size
        while rest:
            piece = file.read(min(PIECE, rest))
            if not piece:
                raise CopyFailed(f"{path} became shorter while it was copied")
            rest -= len(piece)
            yield piece
    yield bytes(-size % BLOCK)


def _below(source: Path) -> Iterator[Path]:
    if not source.is_dir():
        return
    for folder, folders, files in os.walk(source):
        folders.sort()
        place = Path(folder)
        links = [name for name in folders if (place / name).is_symlink()]
        for name in links:
            folders.remove(name)
        yield from (place / name for name in sorted((*folders, *files, *links)))


@dataclass
class Unpacker:
    """Creates the files of an archive from a box at `target`. The top member becomes `target`."""

    target: Path
    skipped: list[str] = field(default_factory=list)
    count: int = 0

    def unpack(self, source: BinaryIO) -> None:
        """Read an archive to its end. Raises CopyFailed."""
        try:
            with tarfile.open(fileobj=source, mode="r|") as archive:
                for member in archive:
                    self._take(archive, member)
        except (tarfile.TarError, EOFError, ValueError) as error:
            raise CopyFailed(f"the archive from the box is damaged: {error}") from None
        except OSError as error:
            raise CopyFailed(f"{error.filename or self.target}: {error.strerror}") from error

    def _take(self, archive: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        words = PurePosixPath(member.name).parts
        if not words or words[0] == "/" or ".." in words or "\0" in member.name:
            self.skipped.append(member.name)
            return
        path = self.target.joinpath(*words[1:])
        if self._through_link(path):
            self.skipped.append(member.name)
        elif member.isdir():
            if path.is_symlink() and path != self.target:
                path.unlink()
            path.mkdir(parents=True, exist_ok=True)
            path.chmod((member.mode & 0o777) | 0o700)
            self.count += 1
        elif member.isreg():
            self._write(archive, member, path)
        elif member.issym() and self._inside(path, member.linkname):
            self._clear(path)
            path.symlink_to(member.linkname)
            self.count += 1
        elif member.islnk():
            self._copy(member, path)
        else:
            self.skipped.append(member.name)

    def _write(self, archive: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> None:
        content = archive.extractfile(member)
        if content is None:
            raise CopyFailed(f"{member.name} has no content")
        self._clear(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
        with os.fdopen(os.open(path, flags, 0o600), "wb") as file:
            while piece := content.read(PIECE):
                file.write(piece)
            os.fchmod(file.fileno(), member.mode & 0o777)
        self.count += 1

    def _copy(self, member: tarfile.TarInfo, path: Path) -> None:
        """Create a second name of a file that the archive had before."""
        words = PurePosixPath(member.linkname).parts
        source = self.target.joinpath(*words[1:])
        inside = bool(words) and words[0] != "/" and ".." not in words
        if not inside or self._through_link(source) or source.is_symlink() or not source.is_file():
            self.skipped.append(member.name)
            return
        self._clear(path)
        os.link(source, path)
        self.count += 1

    def _clear(self, path: Path) -> None:
        """Remove a link or a special file in the place of a new file."""
        special = path.exists() and not path.is_dir() and not path.is_file()
        if path.is_symlink() or special or (path.is_file() and path.stat().st_nlink > 1):
            path.unlink()

    def _through_link(self, path: Path) -> bool:
        """Return whether a folder between the target and the path is a link."""
        folder = path.parent
        while folder != self.target and folder.is_relative_to(self.target):
            if folder.is_symlink():
                return True
            folder = folder.parent
        return path != self.target and self.target.is_symlink() and not self.target.is_dir()

    def _inside(self, path: Path, link: str) -> bool:
        """Return whether a link leads to a place below the target."""
        if not link or link.startswith("/") or "\0" in link:
            return False
        place = os.path.normpath(path.parent / link)
        return Path(place).is_relative_to(os.path.normpath(self.target))
