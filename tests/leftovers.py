"""Removes what earlier runs of the tests left on this machine, for example after a crash.

Left are directories of services and servers (`/tmp/boxd-*`), directories of pytest, and older
versions of test images. A directory that a mount, a loop device or a process uses stays, and so
does a recent one: another run may be using it.
"""

from __future__ import annotations

import getpass
import os
import shutil
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from tests.harness.boxes.backend import IMAGES_DIR

if TYPE_CHECKING:
    from collections.abc import Iterator

AGE_S = 2 * 3600
"""Seconds since the last change of a directory after which no run uses it."""


def main() -> None:
    """Remove everything that is old and unused."""
    uses = "\n".join(in_use())
    for place in [*temporary(Path(tempfile.gettempdir())), *versions(IMAGES_DIR)]:
        if str(place) not in uses:
            shutil.rmtree(place, ignore_errors=True)


def temporary(directory: Path) -> Iterator[Path]:
    """Yield old directories of tests."""
    sessions = directory / f"pytest-of-{getpass.getuser()}"
    for place in [*directory.glob("boxd-*"), *sessions.glob("pytest-*")]:
        if place.is_dir() and not place.is_symlink() and is_old(place):
            yield place


def versions(images: Path) -> Iterator[Path]:
    """Yield versions of images that new boxes do not use."""
    for image in images.glob("*/versions"):
        current = (image.parent / "rootfs").resolve()
        for version in image.iterdir():
            if version != current and is_old(version):
                yield version


def is_old(place: Path) -> bool:
    """Return whether a directory has not changed for a long time."""
    return place.stat().st_mtime < time.time() - AGE_S


def in_use() -> Iterator[str]:
    """Yield texts that contain the paths which mounts, loop devices and processes use."""
    yield Path("/proc/self/mountinfo").read_text()
    for file in Path("/sys/block").glob("loop*/loop/backing_file"):
        with suppress(OSError):
            yield file.read_text()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            yield (process / "cmdline").read_bytes().decode(errors="replace")
            yield os.readlink(process / "cwd")


if __name__ == "__main__":
    main()
