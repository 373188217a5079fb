"""Archives that want out: everything they ask for happens inside the new root, or not at all."""

from __future__ import annotations

import binascii
import gzip
import lzma
import os
import shutil
import struct
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from boxd import maintenance
from boxd.embedded.statedir import make_private
from boxd.errors import BadRequest, Conflict, Unavailable
from boxd.images import importer
from boxd.images.unpack import Bounds
from tests.harness.boxes.backend import open_box_host
from tests.harness.boxes.tarballs import Tarball, with_size

if TYPE_CHECKING:
    from boxd.images.importer import ImportResult

BUSYBOX = Path("/bin/busybox")
SMALL = Bounds(entries=1000, file_bytes=1 << 20, total_bytes=4 << 20)


async def imported(directory: Path, data: bytes, bounds: Bounds = SMALL) -> ImportResult:
    """Imports an archive. A failure leaves nothing, and nothing outside has changed in any case."""
    (directory / "a.tar").write_bytes(data)
    (directory / "precious").write_text("mine")
    versions = directory / "versions"
    try:
        return await importer.import_root(
            directory / "a.tar", versions / "one", lambda _: None, bounds=bounds
        )
    except BaseException:
        assert os.listdir(versions) == []
        raise
    finally:
        assert sorted(os.listdir(directory)) == ["a.tar", "precious", "versions"]
        assert (directory / "precious").read_text() == "mine"


def system() -> Tarball:
    """A root, to which evil is added."""
    return Tarball().system()


def ups(path: Path) -> str:
    """`../../..` from a root in `path`/versions up to the host's root, and more."""
    return "/".join([".."] * (len(path.parts) + 8))


# --- ways out --------------------------------------------------------------------------------


async def test_no_entry_is_named_above_the_root(tmp_path: Path) -> None:
    for name in ("../precious", f"{ups(tmp_path)}{tmp_path}/precious", "bin/../../precious"):
        with pytest.raises(BadRequest, match=r"leads out of the root by '\.\.'"):
            await imported(tmp_path, system().file(name, b"evil").data())


async def test_an_absolute_name_is_below_the_root(tmp_path: Path) -> None:
    target = str(tmp_path / "precious")
    found = await imported(tmp_path, system().file(target, b"evil").data())
    assert (found.root / target.lstrip("/")).read_bytes() == b"evil"


@pytest.mark.parametrize("absolute", [True, False])
async def test_a_link_on_the_way_stays_below_the_root(tmp_path: Path, absolute: bool) -> None:
    up = "/" if absolute else ups(tmp_path)
    name = str(tmp_path / "precious").lstrip("/")
    archive = system().symlink("out", up).file(f"out/{name}", b"evil")
    found = await imported(tmp_path, archive.data())
    assert (found.root / name).read_bytes() == b"evil"


async def test_a_file_replaces_a_link_and_is_not_written_through_it(tmp_path: Path) -> None:
    target = str(tmp_path / "precious")
    archive = system().symlink("f", target).file("f", b"evil").fifo("p").file("p", b"not blocked")
    found = await imported(tmp_path, archive.data())
    assert (found.root / "f").read_bytes() == b"evil"
    assert (found.root / "p").read_bytes() == b"not blocked"


@pytest.mark.parametrize("over", ["", "out"])
async def test_no_hard_link_reaches_the_host(tmp_path: Path, over: str) -> None:
    target = f"{over}{tmp_path}/precious"
    archive = system().symlink("out", ups(tmp_path)).link("stolen", target)
    with pytest.raises(BadRequest, match="which does not precede it in the archive"):
        await imported(tmp_path, archive.data())
    with pytest.raises(BadRequest, match="leads out of the root"):
        await imported(tmp_path, system().link("stolen", f"../{over}precious").data())


async def test_devices_are_left_out(tmp_path: Path) -> None:
    archive = system().device("dev/mem").device("disk", tarfile.BLKTYPE).link("again", "disk")
    found = await imported(tmp_path, archive.data())
    assert found.notes == ("2 device nodes left out",)
    assert not os.path.lexists(found.root / "disk")
    assert not os.path.lexists(found.root / "again")
    assert os.listdir(found.root / "dev") == []


async def test_no_attribute_gives_rights_or_speaks_to_the_overlay(tmp_path: Path) -> None:
    attributes = {
        "SCHILY.xattr.security.capability": "\x01\x00\x00\x02" + "\x10" * 16,
        "SCHILY.xattr.trusted.overlay.opaque": "y",
        "SCHILY.xattr.trusted.overlay.redirect": "/etc",
        "SCHILY.xattr.user.mine": "x",
    }
    archive = system().file("bin/ping", b"x", pax_headers=attributes)
    found = await imported(tmp_path, archive.directory("d", pax_headers=attributes).data())
    for name in ("bin/ping", "d"):
        assert os.listxattr(found.root / name) == []


# --- bombs -----------------------------------------------------------------------------------


def sparse(size: int) -> bytes:
    """An archive of one file that is nothing but a hole."""
    content = b"1\n%d\n0\n" % size
    headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": "big"}
    headers["GNU.sparse.realsize"] = str(size)
    return system().file("big", content.ljust(512, b"\0"), pax_headers=headers).data()


async def test_holes_count_as_what_they_show(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="larger than the limit of 1 MiB"):
        await imported(tmp_path, sparse(1 << 50))


async def test_many_small_bombs_count_together(tmp_path: Path) -> None:
    archive = system()
    for number in range(5):
        archive.file(f"f{number}", bytes(1 << 20))
    with pytest.raises(BadRequest, match="its files together are larger than 4 MiB"):
        await imported(tmp_path, gzip.compress(archive.data()))


async def test_entries_without_content_count_too(tmp_path: Path) -> None:
    archive = system()
    for _ in range(1000):
        archive.directory("same")
    with pytest.raises(BadRequest, match="more than 1000 entries"):
        await imported(tmp_path, archive.data())


async def test_what_follows_the_end_is_bounded(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="larger than an image may be"):
        await imported(tmp_path, gzip.compress(system().data() + bytes(64 << 20)))


async def test_a_decompressor_that_wants_all_memory_gets_none(tmp_path: Path) -> None:
    """The dictionary's size is a byte of the block's header: 40 means 4 GiB."""
    packed = bytearray(lzma.compress(system().data(), preset=0))
    header = packed[12 : 12 + 4 * (packed[12] + 1)]
    at = header.index(b"\x21\x01") + 2
    header[at] = 40
    header[-4:] = struct.pack("<I", binascii.crc32(header[:-4]))
    packed[12 : 12 + len(header)] = header
    with pytest.raises(BadRequest, match="needs more than 1 GiB of memory"):
        await imported(tmp_path, bytes(packed))


async def test_a_name_of_terabytes(tmp_path: Path) -> None:
    archive = Tarball().file("n", b"x" * 600).data()
    evil = with_size(archive, 0, 1 << 42)
    for kind in (b"L", b"x", b"g"):
        typed = with_size(evil[:156] + kind + evil[157:], 0, 1 << 42)
        with pytest.raises(BadRequest, match="the archive is"):
            await imported(tmp_path, typed)


# --- damage ----------------------------------------------------------------------------------


async def test_cut_archives(tmp_path: Path) -> None:
    whole = system().file("f", b"x" * 5000).data()
    end = 512 * 2 + 512 + 512 + 5120
    for length in (600, 1024, 2048, 2300, end - 512, end):
        with pytest.raises(BadRequest, match="the archive is"):
            await imported(tmp_path, whole[:length])
    packed = gzip.compress(whole)
    for length in (20, len(packed) // 2, len(packed) - 6):
        with pytest.raises(BadRequest, match="the archive is damaged"):
            await imported(tmp_path, packed[:length])


async def test_flipped_bytes(tmp_path: Path) -> None:
    whole = system().file("f", b"x" * 600).file("g").data()
    with pytest.raises(BadRequest, match="truncated or damaged"):
        await imported(tmp_path, whole[:1700] + b"\xff" + whole[1701:])
    packed = bytearray(gzip.compress(whole))
    packed[-6] ^= 0xFF  # in the sum at the end
    with pytest.raises(BadRequest, match="damaged"):
        await imported(tmp_path, bytes(packed))


async def test_a_size_below_zero(tmp_path: Path) -> None:
    whole = system().file("f", b"x").file("g").data()
    header = bytearray(whole[1536:2048])
    header[124:136] = b"\xff" * 12
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    with pytest.raises(BadRequest, match=r"larger than|the archive is"):
        await imported(tmp_path, whole[:1536] + bytes(header) + whole[2048:])


@pytest.mark.parametrize(
    ("name", "said"),
    [("n" * 300, "File name too long"), ("a/" * 3000 + "f", "File name too long")],
)
async def test_names_that_no_filesystem_takes(tmp_path: Path, name: str, said: str) -> None:
    with pytest.raises(BadRequest, match=said):
        await imported(tmp_path, system().file(name).data())


async def test_a_deep_tree_is_removed_with_what_failed(tmp_path: Path) -> None:
    """Deeper than a path can be long: the link makes it so."""
    deep = "a/" * 1500
    archive = system().directory(deep).symlink("s", "/" + deep).directory("s/" + deep)
    with pytest.raises(BadRequest, match="leads out of the root"):
        await imported(tmp_path, archive.file("../x").data())
    replaced = system().directory(deep).symlink("s", "/" + deep).directory("s/" + deep).file("a")
    assert (await imported(tmp_path, replaced.data())).root.joinpath("a").is_file()


@pytest.mark.parametrize(
    ("headers", "said"),
    [
        ({"path": "a\0b"}, "null"),
        ({"uid": str(1 << 70)}, "greater than maximum"),
    ],
)
async def test_numbers_and_names_out_of_range(
    tmp_path: Path, headers: dict[str, str], said: str
) -> None:
    with pytest.raises(BadRequest, match=said):
        await imported(tmp_path, system().file("f", pax_headers=headers).data())


async def test_a_time_that_is_none_is_left_out(tmp_path: Path) -> None:
    archive = (
        system().file("f", pax_headers={"mtime": "nan"}).file("g", pax_headers={"mtime": "inf"})
    )
    assert (await imported(tmp_path, archive.data())).root.joinpath("g").is_file()


# --- boxes of it -----------------------------------------------------------------------------


def hostile_system() -> bytes:
    """A system that starts, with every place bent that boxes have mounts at."""
    archive = Tarball().directory("bin").file("bin/busybox", BUSYBOX.read_bytes(), mode=0o4755)
    for name in ("sh", "sleep", "cat", "ls", "id", "touch"):
        archive.symlink(f"bin/{name}", "busybox")
    archive.symlink("wrk", "/etc").symlink("run", "/bin").symlink("proc", "/dev").file("sys", b"x")
    archive.symlink("dev", "../../../../..").symlink(".box", "/bin").device("bin/disk")
    return archive.symlink("etc/resolv.conf", "/bin/busybox").data()


@pytest.mark.timeout(180)
async def test_boxes_of_a_hostile_image(tmp_path: Path) -> None:
    (tmp_path / "evil.tar").write_bytes(hostile_system())
    state = tmp_path / "state"
    make_private(state)
    async with open_box_host(state, tmp_path) as host:
        told = await maintenance.import_image(
            host.config, "evil", tmp_path / "evil.tar", lambda _: None
        )
        assert "/wrk was a link: it is an empty directory now" in told.notes
        [image] = [one for one in maintenance.known_images(host.config) if one.name == "evil"]
        assert (image.built, image.description) == (True, "Imported from evil.tar")

        box = await host.box(rootfs=told.root, image="evil")
        ids = await host.run(box, "/bin/cat", "/proc/self/uid_map")
        assert ids.out.split()[1] != "0", ids.err  # a set-user-id program becomes root of the box
        assert "resolv.conf" in (await host.run(box, "/bin/ls", "/etc")).out
        assert (await host.run(box, "/bin/touch", "/run/f", "/dev/shm/f", "/bin/new")).status == 0
        assert not (told.root / "bin/new").exists()
        assert not (told.root / "bin/f").exists()

        with pytest.raises(Conflict, match=f"used by testbox \\({box[:12]}\\); remove it"):
            maintenance.remove_image(host.config, "evil")
        again = await maintenance.import_image(
            host.config, "evil", tmp_path / "evil.tar", lambda _: None
        )
        assert sorted(told.root.parent.iterdir()) == sorted([told.root, again.root])
        await host.backend.stop(box)
        await host.backend.start(box)
        assert (await host.run(box, "/bin/ls", "/bin/new")).status == 0

        await host.backend.stop(box)
        shutil.move(told.root, tmp_path / "away")
        with pytest.raises(
            Unavailable, match=rf"image evil \(version {told.root.name}\) of the box is missing"
        ):
            await host.backend.start(box)
        shutil.move(tmp_path / "away", told.root)
        await host.backend.start(box)

        # A snapshot stands on the version as its box did, and what is made of it does.
        await host.backend.stop(box)
        await host.backend.snapshot(box, kept := "5" * 32)
        await host.backend.destroy(box)
        with pytest.raises(Conflict, match="used by a snapshot of testbox; remove"):
            maintenance.remove_image(host.config, "evil")
        await maintenance.import_image(host.config, "evil", tmp_path / "evil.tar", lambda _: None)
        copy = host.plan(rootfs=again.root, image="evil")
        await host.backend.clone(copy, kept)
        await host.backend.start(copy.box_id)
        assert (await host.run(copy.box_id, "/bin/ls", "/bin/new")).status == 0
        await host.backend.drop_snapshot(kept)
        with pytest.raises(Conflict, match="used by testbox"):
            maintenance.remove_image(host.config, "evil")
        await host.backend.destroy(copy.box_id)
        maintenance.remove_image(host.config, "evil")
        assert not (state / "images/evil").exists()
        assert host.leftovers() == []
