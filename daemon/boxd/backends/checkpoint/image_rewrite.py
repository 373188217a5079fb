"""Adapts a box's memory image to changes since the dump.

Files on the drive may have other lengths or be missing (`criu_images`). Files that show the box its
own size have other lengths (`lxcfs`). A copy of a box has another hostname, and every restored box
has other masks. The images themselves are not changed. The restore uses a directory of hard links
to them, with replacements for the few changed files.
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
from pathlib import Path
from typing import TYPE_CHECKING

from boxd.backends.checkpoint import criu_images
from boxd.backends.host.id_maps import acting_as
from boxd.backends.host.run import run
from boxd.backends.oci import lxcfs
from boxd.backends.oci.bundle import DRIVE_DIR
from boxd.errors import Conflict
from boxd.log import escape

if TYPE_CHECKING:
    from boxd.backends.checkpoint.criu_images import OpenFile
    from boxd.backends.host.id_maps import IdMap

LOOK_SCRIPT = Path(__file__).with_name("drive_look.py")
LOOK_TIMEOUT = 20.0
FILES, REMAPS = "files.img", "remap-fpath.img"
_STAND_IN = ".gone-"
_NAMES = "stand-ins"


def place(images: Path) -> Path:
    """Return the directory in which `adapt` writes restorable images."""
    return images.with_name(f"{images.name}.mended")


def clear(images: Path, root: Path) -> None:
    """Remove the images of `adapt`, complete or not, and the stand-ins of `fit_drive`.

    `root` is the mounted root of the box. The box keeps open stand-ins as unlinked files.
    """
    adapted = place(images)
    with suppress(FileNotFoundError):
        for name in (adapted / _NAMES).read_text().splitlines():
            _remove(root, name)
    shutil.rmtree(adapted, ignore_errors=True)


def adapt(images: Path, hostname: str, by: IdMap | None) -> None:
    """Write restorable images to a directory next to the images of a dump.

    `by` is the id map of the box. Needs neither its root nor its drive, so it can run before they
    are mounted. Nothing may be left of an earlier call (`clear`). Raises DamagedImage, OSError.
    """
    adapted = place(images)
    # A process of the box opens images in this directory. Only the service reaches it by its path.
    adapted.mkdir(mode=0o711)
    for image in images.iterdir():
        # Hard links: CRIU opens some images from within the box's root.
        (adapted / image.name).hardlink_to(image)
    # The files of lxcfs have the length of the host's files, which varies with the digits in them.
    sizes = [name.encode() for name in lxcfs.PLACES]
    _replace(adapted / FILES, criu_images.without_sizes((images / FILES).read_bytes(), sizes))
    for names in images.glob("utsns-*.img"):
        _replace(adapted / names.name, criu_images.with_hostname(names.read_bytes(), hostname))
    if by is not None:
        for users in images.glob("userns-*.img"):
            _replace(adapted / users.name, criu_images.with_ids(users.read_bytes(), by.ids.first))
    for mounted in images.glob("mountpoints-*.img"):
        _replace(adapted / mounted.name, criu_images.with_sources(mounted.read_bytes()))


async def fit_drive(images: Path, root: Path, drive: Path, by: IdMap | None) -> None:
    """Change adapted images to the present files of the drive that the box has open.

    `root` is the mounted root of the box, and `drive` the mount for its /wrk. Raises DamagedImage,
    OSError, and the error of `run` if the drive does not answer.
    """
    missing_files = await _missing_files(images, drive)
    await asyncio.to_thread(_fit_drive, images, root, missing_files, by)


def _fit_drive(images: Path, root: Path, missing_files: list[OpenFile], by: IdMap | None) -> None:
    adapted = place(images)
    data = criu_images.without_sizes((adapted / FILES).read_bytes())
    if missing_files:
        names = {file.name: _STAND_IN + secrets.token_hex(8) for file in missing_files}
        (adapted / _NAMES).write_text("\n".join(names.values()))
        for file in {file.name: file for file in missing_files}.values():
            with acting_as(by):
                _stand_in(root, names[file.name], file)
        mount = criu_images.root_mount(next(images.glob("mountpoints-*.img")).read_bytes())
        others = {name: f"/{other}".encode() for name, other in names.items()}
        data = criu_images.with_stand_ins(data, others, mount)
    _replace(adapted / FILES, data)


def verify(images: Path) -> None:
    """Check that a fresh dump can be restored later.

    Raises DamagedImage, or Conflict if a program has a file open that a restore would not find.
    """
    files = (images / FILES).read_bytes()
    criu_images.open_files(files)
    root = criu_images.root_mount(next(images.glob("mountpoints-*.img")).read_bytes())
    with suppress(FileNotFoundError):
        for file in criu_images.linked((images / REMAPS).read_bytes(), files):
            name = "/" + file.name.decode(errors="backslashreplace").lstrip("/")
            if file.mount_id == root or name.startswith(f"{DRIVE_DIR}/"):
                raise Conflict(
                    f"a program has the file {escape(name)} open, which lost this name and has "
                    "another one. Close it, or end the program; the box stays awake"
                )


async def _missing_files(images: Path, drive: Path) -> list[OpenFile]:
    """Return files of the drive that the box has open and that no longer exist."""
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
    """Create a stand-in in the box's root. The content of the root is untrusted."""
    kind = stat.S_IFMT(file.mode) if file.mode is not None else stat.S_IFREG
    top = os.open(root, os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if kind == stat.S_IFDIR:
            os.mkdir(name, 0o700, dir_fd=top)
        elif kind == stat.S_IFIFO:
            os.mkfifo(name, 0o600, dir_fd=top)
        else:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            stand_in = os.open(name, flags, 0o600, dir_fd=top)
            try:
                os.truncate(stand_in, file.size or 0)
            finally:
                os.close(stand_in)
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


def _replace(image: Path, data: bytes) -> None:
    """Replace a hard link with a new file, so that the original does not change."""
    image.unlink(missing_ok=True)
    image.write_bytes(data)
