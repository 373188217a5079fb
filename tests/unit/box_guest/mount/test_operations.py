"""What handlers answer when the drive changed between two requests of the kernel."""

from __future__ import annotations

import asyncio
import errno
import os
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

    from wrkfs.fs import Filesystem
    from wrkfs.types import Ino

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


@pytest.mark.parametrize("verb", ["open", "getattr", "setxattr", "listxattr"])
async def test_the_second_walk_holds_a_file_that_is_then_removed(verb: str) -> None:
    drive = Drive()
    fs = await drive.mount()
    mount, ctx = Operations(fs), pyfuse3.RequestContext()
    await lose(mount, await new_file(fs))
    second = await new_file(fs)
    assert (await mount.lookup(ROOT_INO, b"name", ctx)).st_ino == second
    await fs.unlink(ROOT_INO, b"name")
    await GONE[verb](mount, second, ctx)
    await drive.close()


async def test_a_link_to_what_the_second_walk_found_and_lost_is_enoent() -> None:
    drive = Drive()
    fs = await drive.mount()
    mount, ctx = Operations(fs), pyfuse3.RequestContext()
    await lose(mount, await new_file(fs))
    second = await new_file(fs)
    await mount.lookup(ROOT_INO, b"name", ctx)
    await fs.unlink(ROOT_INO, b"name")
    with pytest.raises(pyfuse3.FUSEError) as refused:
        await mount.link(second, ROOT_INO, b"another", ctx)
    assert refused.value.errno == errno.ENOENT
    await drive.close()


async def test_the_second_walk_holds_symbolic_links_and_directories() -> None:
    drive = Drive()
    fs = await drive.mount()
    mount, ctx = Operations(fs), pyfuse3.RequestContext()
    await lose(mount, await new_file(fs))
    link = await fs.symlink(ROOT_INO, b"link", b"target", Caller(0, 0))
    folder = await fs.mkdir(ROOT_INO, b"folder", 0o755, Caller(0, 0))
    for name in (b"link", b"folder"):
        await mount.lookup(ROOT_INO, name, ctx)
    await fs.unlink(ROOT_INO, b"link")
    await fs.rmdir(ROOT_INO, b"folder")
    assert await mount.readlink(link.ino, ctx) == b"target"
    for ino in (link.ino, folder.ino):
        assert (await mount.getattr(ino, ctx)).st_nlink == 0
    await drive.close()


async def test_what_the_second_walk_holds_ends_with_the_open() -> None:
    drive = Drive()
    fs = await drive.mount()
    mount, ctx = Operations(fs), pyfuse3.RequestContext()
    await lose(mount, await new_file(fs))
    second = await new_file(fs)
    await mount.lookup(ROOT_INO, b"name", ctx)
    opened = await mount.open(second, 0, ctx)
    await fs.unlink(ROOT_INO, b"name")
    await mount.release(opened.fh)
    await asyncio.gather(*mount._walks._closing)
    assert second not in fs._files
    await drive.close()


async def new_file(fs: Filesystem) -> Ino:
    """A new empty file `name`: the trash does not keep it."""
    _, handle = await fs.create(ROOT_INO, b"name", 0o644, os.O_RDWR, Caller(0, 0))
    ino = handle.ino
    await handle.close()
    return ino


async def lose(mount: Operations, ino: Ino) -> None:
    """The kernel opens a file that was removed after its first walk."""
    await mount._fs.unlink(ROOT_INO, b"name")
    with pytest.raises(pyfuse3.FUSEError) as refused:
        await mount.open(ino, 0, pyfuse3.RequestContext())
    assert refused.value.errno == errno.ESTALE


async def test_listings_that_tell_attributes_only_are_noted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Kernels before 6.16 rely on no names; inodes are made of a listing there as well."""
    drive = Drive()
    fs = await drive.mount()
    attr = await fs.mkdir(ROOT_INO, b"name", 0o755, Caller(0, 0))
    mount, noted = Operations(fs), []
    monkeypatch.setattr(pyfuse3, "readdir_reply", lambda *_: True)
    monkeypatch.setattr(mount, "_validities", lambda _, entries, __: ([(0.0, 1.0)], None))
    kernel = create_autospec(Kernel, instance=True)
    kernel.listed.side_effect = lambda *told: noted.append(told)
    monkeypatch.setattr(mount, "_kernel", kernel)
    handle = await mount.opendir(ROOT_INO, pyfuse3.RequestContext())
    await mount.readdir(handle, 0, cast("pyfuse3.ReaddirToken", None))
    assert noted == [(handle, ROOT_INO, {attr.ino}, None)]
    await drive.close()


@pytest.mark.parametrize("durable_close", [False, True])
@pytest.mark.parametrize("locks", [False, True])
async def test_only_a_close_with_nothing_to_do_sends_no_flush(
    monkeypatch: pytest.MonkeyPatch, locks: bool, durable_close: bool
) -> None:
    """Locks of the drive end with FLUSH, and a durable close covers names and attributes."""
    drive = Drive()
    fs = await drive.mount()
    fs._write_path.durable_close = durable_close
    mount, ctx = Operations(fs), pyfuse3.RequestContext()
    monkeypatch.setattr(mount, "enable_posix_locks", locks)
    ino = await new_file(fs)
    skips = {}
    for flags in (os.O_RDONLY, os.O_WRONLY, os.O_RDWR):
        opened = await mount.open(ino, flags, ctx)
        skips[flags] = opened.noflush
        await mount.release(opened.fh)
    reader_skips = not (locks or durable_close)
    assert skips == {os.O_RDONLY: reader_skips, os.O_WRONLY: False, os.O_RDWR: False}
    await drive.close()
