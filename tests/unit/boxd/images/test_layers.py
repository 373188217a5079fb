"""Images in layers: what `docker save` and the OCI layout write, applied and refused."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import platform
from typing import TYPE_CHECKING, Any

import pytest

from boxd.errors import BadRequest
from boxd.images import importer
from boxd.images.unpack import Bounds
from tests.harness.boxes.tarballs import Tarball

if TYPE_CHECKING:
    from pathlib import Path

    from boxd.images.importer import ImportResult

ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
BASE = Tarball().system().directory("etc").file("etc/old", b"1").file("etc/kept", b"2")
BOTTOM = BASE.directory("d").directory("d/sub").file("d/sub/low").file("d/low").data()
TOP = (
    Tarball()
    .file("etc/.wh.old")
    .file("etc/new", b"3")
    .directory("d")
    .directory("d/sub")
    .file("d/sub/high")
    .file("d/.wh..wh..opq")
    .file(".wh.never-there")
    .data()
)
RESULT = {"etc": ["kept", "new"], "d": ["sub"], "d/sub": ["high"]}


async def imported(directory: Path, archive: Tarball) -> ImportResult:
    """A failure leaves nothing."""
    source = archive.write(directory / "image.tar")
    try:
        return await importer.import_root(source, directory / "versions/one", lambda _: None)
    except BaseException:
        assert os.listdir(directory / "versions") == []
        raise


def docker(*layers: bytes, count: int = 1) -> Tarball:
    """As `docker save` writes it."""
    archive = Tarball()
    names = []
    for number, layer in enumerate(layers):
        names.append(f"{number}/layer.tar")
        archive.directory(str(number)).file(names[-1], layer)
    return archive.file("manifest.json", json.dumps([{"Layers": names}] * count).encode())


class Oci:
    """An OCI layout."""

    def __init__(self) -> None:
        self.archive = Tarball().file("oci-layout", b'{"imageLayoutVersion": "1.0.0"}')

    def blob(self, content: bytes, **more: object) -> dict[str, Any]:
        """Adds a part; how it is referred to."""
        digest = hashlib.sha256(content).hexdigest()
        self.archive.file(f"blobs/sha256/{digest}", content)
        return {"digest": f"sha256:{digest}", "size": len(content), **more}

    def document(self, content: dict[str, Any], **more: object) -> dict[str, Any]:
        """The same of a description."""
        return self.blob(json.dumps(content).encode(), **more)

    def image(self, *layers: bytes, **more: object) -> dict[str, Any]:
        """The manifest of an image, as an index names it."""
        return self.document({"layers": [self.blob(layer) for layer in layers]}, **more)

    def indexed(self, *manifests: dict[str, Any]) -> Tarball:
        """The whole archive."""
        return self.archive.file("index.json", json.dumps({"manifests": manifests}).encode())


def assert_applied(found: ImportResult) -> None:
    """The upper layer stands over the lower one."""
    for name, content in RESULT.items():
        assert sorted(os.listdir(found.root / name)) == content
    assert (found.root / "bin/sh").exists()
    assert not list(found.root.rglob(".wh*"))
    assert not (found.root / "manifest.json").exists()


async def test_docker_save(tmp_path: Path) -> None:
    found = await imported(tmp_path, docker(BOTTOM, TOP))
    assert found.notes == ("2 layers of docker save",)
    assert_applied(found)


async def test_an_oci_layout_with_compressed_layers(tmp_path: Path) -> None:
    oci = Oci()
    found = await imported(tmp_path, oci.indexed(oci.image(gzip.compress(BOTTOM), TOP)))
    assert found.notes == ("2 layers of an OCI layout",)
    assert_applied(found)


async def test_the_image_for_this_machine_is_taken(tmp_path: Path) -> None:
    oci = Oci()
    mine = {"os": "linux", "architecture": ARCHITECTURE}
    other = {"os": "linux", "architecture": "s390x"}
    inner = oci.document(
        {"manifests": [oci.image(TOP, platform=other), oci.image(BOTTOM, TOP, platform=mine)]},
        mediaType="application/vnd.oci.image.index.v1+json",
    )
    assert_applied(await imported(tmp_path, oci.indexed(inner)))


async def test_marks_do_not_reach_out_of_the_root(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("mine")
    up = "/".join([".."] * 20) + str(tmp_path)
    bottom = Tarball().system().symlink("out", up).data()
    top = Tarball().file("out/.wh.precious").data()
    with pytest.raises(BadRequest, match=r"wh\.precious"):
        await imported(tmp_path, docker(bottom, Tarball().file("../.wh.precious").data()))
    found = await imported(tmp_path, docker(bottom, top))
    assert os.readlink(found.root / "out") == up
    assert (tmp_path / "precious").read_text() == "mine"


async def test_layers_that_link_out_of_the_image_are_not_read(tmp_path: Path) -> None:
    """What they name is looked for in the image."""
    archive = Tarball().symlink("0/layer.tar", "/etc/passwd")
    manifest = json.dumps([{"Layers": ["0/layer.tar"]}]).encode()
    with pytest.raises(BadRequest, match=r"/0/layer\.tar in it cannot be read"):
        await imported(tmp_path, archive.file("manifest.json", manifest))
    pipe = Tarball().fifo("l").file("manifest.json", json.dumps([{"Layers": ["l"]}]).encode())
    with pytest.raises(BadRequest, match="/l in it is not a file"):
        await imported(tmp_path, pipe)


async def test_bounds_hold_for_layers_too(tmp_path: Path) -> None:
    bomb = gzip.compress(Tarball().system().file("big", bytes(8 << 20)).data())
    source = docker(bomb).write(tmp_path / "image.tar")
    bounds = Bounds(file_bytes=1 << 20)
    with pytest.raises(BadRequest, match="'big' is larger than the limit of 1 MiB"):
        await importer.import_root(source, tmp_path / "v/one", lambda _: None, bounds=bounds)
    assert os.listdir(tmp_path / "v") == []


def damaged() -> dict[str, tuple[Tarball, str]]:
    """Images that are none, and what is said."""
    oci = Oci
    flipped = oci()
    wrong = flipped.document({"layers": [{"digest": "sha256:" + "0" * 64}]})
    flipped.archive.file("blobs/sha256/" + "0" * 64, b"other")
    foreign = oci()
    elsewhere = foreign.image(BOTTOM, platform={"os": "plan9", "architecture": "vax"})
    two = oci()
    escape = oci()
    circle = oci()
    inner = circle.document({"manifests": []})
    for _ in range(3):
        kind = "application/vnd.oci.image.index.v1+json"
        inner = circle.document({"manifests": [inner]}, mediaType=kind)
    return {
        "two": (docker(BOTTOM, count=2), "exactly one image"),
        "two-oci": (two.indexed(two.image(BOTTOM), two.image(TOP)), "exactly one image"),
        "no-json": (Tarball().file("manifest.json", b"{"), "is not JSON"),
        "no-list": (Tarball().file("manifest.json", b"[{}]"), "the image is malformed"),
        "numbers": (Tarball().file("manifest.json", b"[1]"), "the image is malformed"),
        "many": (Tarball().file("manifest.json", json.dumps([{"Layers": ["l"] * 300}]).encode()),
                 "at most 256"),
        "sum": (flipped.indexed(wrong), "its checksum is wrong"),
        "machine": (foreign.indexed(elsewhere), f"no image for linux/{ARCHITECTURE}"),
        "path": (escape.indexed({"digest": "sha256:../../../etc/passwd"}), "not a SHA-256 digest"),
        "circle": (circle.indexed(inner), "nested too deep"),
        "zstd": (docker(b"\x28\xb5\x2f\xfd" + bytes(600)), "compressed with zstd"),
        "none": (docker(), "is not the root of a system"),
    }  # fmt: skip


@pytest.mark.parametrize("case", damaged())
async def test_images_that_are_not_right(tmp_path: Path, case: str) -> None:
    archive, said = damaged()[case]
    with pytest.raises(BadRequest, match=said):
        await imported(tmp_path, archive)
