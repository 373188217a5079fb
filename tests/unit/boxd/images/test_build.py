"""Building, as far as it can be seen without downloading an image."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from boxd.backends.host import mounts
from boxd.errors import Unavailable
from boxd.images import apt_sources, build, importer
from boxd.images.apt_sources import Mirrors
from boxd.images.recipes import Recipe

if TYPE_CHECKING:
    from pathlib import Path

RECIPE = Recipe("tiny", "nothing", "bookworm", ("a", "b"), ("sh",))


def test_the_command_line(tmp_path: Path) -> None:
    command = build.mmdebstrap(RECIPE, tmp_path / "root", tmp_path / "kept", None, ["deb x"])
    assert command[:1] == ["unshare"]
    assert "--include=a,b" in command
    assert command[-3:] == ["bookworm", str(tmp_path / "root"), "deb x"]
    assert not [word for word in command if "Proxy" in word]
    proxied = build.mmdebstrap(RECIPE, tmp_path, tmp_path, "http://proxy:3128", [])
    assert '--aptopt=Acquire::http::Proxy "http://proxy:3128"' in proxied


@pytest.mark.parametrize("words", [build.NAMESPACES, importer.SANDBOX])
def test_mounts_of_the_host_that_end_meanwhile_end_there_too(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    """A root that a build still has cannot be mounted again: its box would not wake."""
    host, root = tmp_path / "host", tmp_path / "host/root"
    host.mkdir()
    try:
        subprocess.run(["mount", "-t", "tmpfs", "none", host], check=True)
        subprocess.run(["mount", "--make-shared", host], check=True)
        root.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "none", root], check=True)
        (root / "file").touch()
        looks = f"test -e {root}/file; echo $?; read _; test -e {root}/file; echo $?"
        command = [*words, "sh", "-c", looks]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as there:
            assert there.stdin is not None
            assert there.stdout is not None
            assert there.stdout.readline() == b"0\n"
            mounts.unmount(root, lazily=False)
            there.stdin.write(b"\n")
            there.stdin.close()
            assert there.stdout.readline() == b"1\n"
    finally:
        mounts.unmount(root, lazily=True)
        mounts.unmount(host, lazily=True)


async def test_a_failed_build_tells_why_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nowhere = Mirrors("http://127.0.0.1:1/debian", "http://127.0.0.1:1/debian-security")
    monkeypatch.setattr(apt_sources, "find_mirrors", lambda _: nowhere)
    recipe = Recipe("broken", "", "no-such-suite", ("bash",), ("sh",))
    target = tmp_path / "versions" / "one"
    with pytest.raises(Unavailable, match=r"(?s)failed with status.*no-such-suite"):
        await build.build_root(recipe, target, tmp_path / "kept", lambda _: None)
    assert list(target.parent.iterdir()) == []
