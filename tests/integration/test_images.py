"""Images as they come out of a build."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from boxd.errors import Unavailable
from boxd.images import build
from boxd.images.recipes import Recipe
from tests.harness.boxes.backend import IMAGES_DIR

if TYPE_CHECKING:
    from pathlib import Path

    from boxd.images.progress import Progress


def test_the_built_image_is_fit_for_people(image_rootfs: Path) -> None:
    sources = (image_rootfs / "etc/apt/sources.list.d/debian.sources").read_text()
    assert "deb.debian.org" in sources
    assert not (image_rootfs / "etc/apt/sources.list").exists()
    assert not (image_rootfs / "etc/resolv.conf").exists()
    assert not list((image_rootfs / "etc/apt/apt.conf.d").glob("*mmdebstrap*"))
    assert (image_rootfs / "etc/machine-id").read_bytes() == b""
    assert "C.UTF-8" in (image_rootfs / "etc/default/locale").read_text()
    for program in ("bash", "git", "rsync", "curl", "python3", "ps"):
        assert (image_rootfs / "usr/bin" / program).exists()
    passwd = (image_rootfs / "etc/passwd").read_text().splitlines()[0]
    assert passwd == "root:x:0:0:root:/root:/bin/bash"


@pytest.mark.timeout(900)
def test_the_image_of_programs_has_jupyterlab(programs_rootfs: Path) -> None:
    """Its first build needs the network, which tests in rooms lack."""
    assert (programs_rootfs / "opt/jupyter/bin/jupyter-lab").exists()
    assert not (programs_rootfs / "wheels").exists()


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_a_build_from_packages(tmp_path: Path) -> None:
    recipe = Recipe(
        "tiny", "", "bookworm", ("ca-certificates",), ("bash", "update-ca-certificates")
    )
    target = tmp_path / "versions" / "one"
    states: list[Progress] = []
    await build.build_root(recipe, target, IMAGES_DIR / "packages", states.append)
    assert [p.name for p in target.parent.iterdir()] == ["one"]
    assert (target / "wrk").is_dir()
    assert list((IMAGES_DIR / "packages").glob("*.deb"))
    percents = [state.percent for state in states]
    assert percents == sorted(percents)
    assert percents[-1] == 100.0
    assert len(percents) > 10


@pytest.mark.timeout(300)
async def test_a_root_that_lacks_a_program_is_not_kept(tmp_path: Path) -> None:
    recipe = Recipe("tiny", "", "bookworm", ("ca-certificates",), ("bash", "no-such-program"))
    target = tmp_path / "versions" / "one"
    with pytest.raises(Unavailable, match="failed with status 1"):
        await build.build_root(recipe, target, IMAGES_DIR / "packages", lambda _: None)
    assert list(target.parent.iterdir()) == []


def test_the_image_for_containers_has_docker(containers_rootfs: Path) -> None:
    """Tests in rooms, which have no network, use the image that this test builds."""
    for program in ("usr/bin/docker", "usr/sbin/dockerd", "usr/bin/fuse-overlayfs"):
        assert (containers_rootfs / program).exists()
