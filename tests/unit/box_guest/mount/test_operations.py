"""What handlers answer when the drive changed between two requests of the kernel."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, cast
from unittest.mock import create_autospec

import pyfuse3
import pytest

from box_guest.mount.kernel import Kernel
from box_guest.mount.operations import Operations
from tests.unit.wrkfs.drive import Drive
from wrkfs.types import ROOT_INO, Caller

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

GONE: dict[str, Callable[[Operations, int, pyfuse3.RequestContext], Awaitable[object]]] = {
    "open": lambda mount, ino, ctx: mount.open(ino, 0, ctx),
    "getattr": lambda mount, ino, ctx: mount.getattr(ino, ctx),
    "readlink": lambda mount, ino, ctx: mount.readlink(ino, ctx),
    "getxattr": lambda mount, ino, ctx: mount.getxattr(ino, b"user.a", ctx),
    "setxattr": lambda mount, ino, ctx: mount.setxattr(ino, b"user.a", b"", ctx),
    "listxattr": lambda mount, ino, ctx: mount.listxattr(ino, ctx),
    "removexattr": lambda mount, ino, ctx: mount.removexattr(ino, b"user.a", ctx),
    "link": lambda mount, ino, ctx: mount.link(ino, ROOT_INO, b"another", ctx),
}


@pytest.mark.parametrize("verb", list(GONE))
async def test_an_inode_that_is_gone_makes_the_kernel_look_again(verb: str) -> None:
    drive = Drive()
    fs = await drive.mount()
    attr = await fs.mkdir(ROOT_INO, b"name", 0o755, Caller(0, 0))
    await fs.rmdir(ROOT_INO, b"name")
    with pytest.raises(pyfuse3.FUSEError) as refused:
        await GONE[verb](Operations(fs), attr.ino, pyfuse3.RequestContext())
    assert refused.value.errno == errno.ESTALE
    with pytest.raises(pyfuse3.FUSEError) as missing:
        await Operations(fs).lookup(ROOT_INO, b"name", pyfuse3.RequestContext())
    assert missing.value.errno == errno.ENOENT
    await drive.close()


async def test_listings_that_tell_attributes_only_are_noted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Kernels before 6.16 rely on no names; inodes are made of a listing there as well."""
    drive = Drive()
    fs = await drive.mount()
    attr = await fs.mkdir(ROOT_INO, b"name", 0o755, Caller(0, 0))
    mount, noted = Operations(fs), []
    monkeypatch.setattr(pyfuse3, "readdir_reply", lambda *_: True)
    monkeypatch.setattr(mount, "_validities", lambda _, entries: [(0.0, 1.0)] * len(entries))
    kernel = create_autospec(Kernel, instance=True)
    kernel.listed.side_effect = lambda *told: noted.append(told)
    monkeypatch.setattr(mount, "_kernel", kernel)
    handle = await mount.opendir(ROOT_INO, pyfuse3.RequestContext())
    await mount.readdir(handle, 0, cast("pyfuse3.ReaddirToken", None))
    assert noted == [(handle, ROOT_INO, {attr.ino})]
    await drive.close()
