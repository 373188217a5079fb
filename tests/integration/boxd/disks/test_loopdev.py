"""Loop devices where many want one, and where nobody makes their nodes."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from boxd.backends.disks import loopdev
from boxd.errors import Unavailable

if TYPE_CHECKING:
    from pathlib import Path

SIZE = 1 << 20
MANY = 10
"""More than the kernel makes by itself."""
BARE_DEV = """
mount -t tmpfs none /dev
mknod /dev/loop-control c 10 237
exec "$@"
"""
ATTACH = """
import sys
from pathlib import Path
from boxd.backends.disks import loopdev
with loopdev.attached(Path(sys.argv[1])) as device:
    print(loopdev.find(Path(sys.argv[1])) == device)
"""


def image(folder: Path, number: int = 0) -> Path:
    """A file for a device."""
    place = folder / f"{number}.img"
    place.write_bytes(bytes(SIZE))
    return place


def test_there_are_more_devices_than_the_kernel_began_with(tmp_path: Path) -> None:
    with ExitStack() as stack:
        devices = {
            stack.enter_context(loopdev.attached(image(tmp_path, number))) for number in range(MANY)
        }
        assert len(devices) == MANY


def test_a_node_that_nobody_makes(tmp_path: Path) -> None:
    """As in a container, whose /dev does not follow the kernel."""
    command = ("unshare", "--mount", "sh", "-euc", BARE_DEV, "sh", sys.executable, "-c", ATTACH)
    done = subprocess.run([*command, image(tmp_path)], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("True\n", "")


def test_a_device_that_another_one_took_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure, tries = loopdev._configure, []

    def late(device: Path, file: int) -> int:
        tries.append(device)
        if len(tries) < 3:
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
        return configure(device, file)

    monkeypatch.setattr(loopdev, "_configure", late)
    with loopdev.attached(image(tmp_path)) as device:
        assert device == tries[-1]


def test_when_none_becomes_free_it_says_who_has_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(device: Path, file: int) -> int:
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))

    kept = image(tmp_path, 1)
    with loopdev.attached(kept):
        kept.unlink()
        monkeypatch.setattr(loopdev, "_configure", never)
        monkeypatch.setattr(loopdev, "WAIT_S", 0.1)
        text = rf"became free in 0.1 s: \d+ are in use, \d+ of them by .*{kept} \(deleted\)"
        with (
            pytest.raises(Unavailable, match=text),
            loopdev.attached(image(tmp_path)),
        ):
            pass
