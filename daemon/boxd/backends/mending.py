"""Makes the images of a box fit what has changed around it since the dump.

Files on the drive may have other lengths, or be gone (see `criu_images`); a copy of a box has
another name. The images themselves stay as they are: a directory of links to them, with the few
that are changed, is what is restored.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import shutil
import stat
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from boxd.backends import criu_images
from boxd.backends.bundle import DRIVE_DIR
from boxd.backends.run import run

if TYPE_CHECKING:
    from boxd.backends.criu_images import OpenFile

LOOK_SCRIPT = Path(__file__).with_name("drive_look.py")
LOOK_TIMEOUT = 20.0
FILES, REMAPS = "files.img", "remap-fpath.img"
_STAND_IN = ".gone-"
_NAMES = "stand-ins"


@dataclass(frozen=True, slots=True)
class Mended:
    """Images that can be restored into the box with that root."""

    images: Path
    root: Path

    def clear(self) -> None:
        """Removes the images, and the stand-ins: what the box has of them open has no name."""
        _clear(self.images, self.root)


def clear(images: Path, root: Path) -> None:
    """Removes what `mend` made for the images, also what is left of it."""
    _clear(_place(images), root)


def _place(images: Path) -> Path:
    return images.with_name(f"{images.name}.mended")


def _clear(place: Path, root: Path) -> None:
    with suppress(FileNotFoundError):
        for name in (place / _NAMES).read_text().splitlines():
            _remove(root, name)
    shutil.rmtree(place, ignore_errors=True)


async def mend(images: Path, *, root: Path, drive: Path | None, hostname: str) -> Mended:
    """Makes what can be restored, in a directory beside the images of a dump.

    `root` is the mounted root of the box, `drive` the mount that comes to its /wrk. Raises
    DamagedImage, OSError, and what a tool raises when the drive does not answer.
    """
    place = await asyncio.to_thread(_link, images, root, hostname)
    if drive is not None:
        gone = await _gone(images, drive)
        await asyncio.to_thread(_fit_drive, images, place, root, gone)
    return Mended(place, root)


def _link(images: Path, root: Path, hostname: str) -> Path:
    place = _place(images)
    _clear(place, root)
    place.mkdir(mode=0o700)
    for image in images.iterdir():
        # No symbolic ones: CRIU opens some from within the box's root.
        (place / image.name).hardlink_to(image)
    for names in images.glob("utsns-*.img"):
        _replace(place / names.name, criu_images.with_hostname(names.read_bytes(), hostname))
    return place


def _fit_drive(images: Path, place: Path, root: Path, gone: list[OpenFile]) -> None:
    data = criu_images.without_sizes((images / FILES).read_bytes())
    if gone:
        names = {file.name: _STAND_IN + secrets.token_hex(8) for file in gone}
        (place / _NAMES).write_text("\n".join(names.values()))
        for file in {file.name: file for file in gone}.values():
            _stand_in(root, names[file.name], file)
        mount = criu_images.root_mount(next(images.glob("mountpoints-*.img")).read_bytes())
        others = {name: f"/{other}".encode() for name, other in names.items()}
        data = criu_images.with_stand_ins(data, others, mount)
    _replace(place / FILES, data)


def verify(images: Path) -> None:
    """Whether a fresh dump can be mended one day. Raises DamagedImage."""
    criu_images.open_files((images / FILES).read_bytes())
    criu_images.root_mount(next(images.glob("mountpoints-*.img")).read_bytes())
    _remapped(images)


async def _gone(images: Path, drive: Path) -> list[OpenFile]:
    """Files of the drive that the box has open and that are not there any more."""
    back = _remapped(images)
    files = [
        file
        for file in criu_images.open_files((images / FILES).read_bytes())
        if file.file_id not in back
    ]
    if not files:
        return []
    names = [file.name.removeprefix(DRIVE_DIR.encode()).decode("latin-1") for file in files]
    request = json.dumps({"root": str(drive), "names": names})
    command = (sys.executable, "-I", "-S", str(LOOK_SCRIPT))
    kinds = json.loads(await run(*command, stdin=request, timeout=LOOK_TIMEOUT))
    return [
        file
        for file, kind in zip(files, kinds, strict=True)
        if kind == 0 or (file.mode is not None and stat.S_IFMT(file.mode) != kind)
    ]


def _remapped(images: Path) -> frozenset[int]:
    with suppress(FileNotFoundError):
        return criu_images.remapped((images / REMAPS).read_bytes())
    return frozenset()


def _stand_in(root: Path, name: str, file: OpenFile) -> None:
    """Makes it in the root of the box, which may hold anything."""
    kind = stat.S_IFMT(file.mode) if file.mode is not None else stat.S_IFREG
    top = os.open(root, os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if kind == stat.S_IFDIR:
            os.mkdir(name, 0o700, dir_fd=top)
        elif kind == stat.S_IFIFO:
            os.mkfifo(name, 0o600, dir_fd=top)
        else:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            made = os.open(name, flags, 0o600, dir_fd=top)
            try:
                os.truncate(made, file.size or 0)
            finally:
                os.close(made)
    finally:
        os.close(top)


def _remove(root: Path, name: str) -> None:
    with suppress(OSError):
        top = os.open(root, os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            try:
                os.unlink(name, dir_fd=top)
            except IsADirectoryError:
                os.rmdir(name, dir_fd=top)
        finally:
            os.close(top)


def _replace(place: Path, data: bytes) -> None:
    """Writes a file where a link to the original is."""
    place.unlink(missing_ok=True)
    place.write_bytes(data)
