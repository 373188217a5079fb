"""File transfer through the front door: scp in both modes, sftp, rsync, with odd names."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.harness.ssh.files import contents
from tests.harness.ssh.openssh import HOST, Done, run

if TYPE_CHECKING:
    from tests.harness.ssh.frontdoor import Entrance

MIB = 1024 * 1024
ODD_NAMES = (
    "plain",
    "with space",
    "quo'te\"s",
    "-dash",
    "star*",
    "new\nline",
    "umlaut-\u00e4",
    "$(x)",
)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Files with odd names, an empty one, one of several blocks, a mode and a link."""
    root = tmp_path / "tree"
    (root / "deep" / "er").mkdir(parents=True)
    for number, name in enumerate(ODD_NAMES):
        (root / name).write_bytes(f"{number}".encode() * 1000)
    (root / "empty").touch()
    (root / "deep" / "er" / "large").write_bytes(os.urandom(3 * MIB + 1))
    (root / "deep" / "script").write_text("#!/bin/sh\n")
    (root / "deep" / "script").chmod(0o755)
    return root


@pytest.mark.parametrize("mode", ["-O", "-s"], ids=["scp", "sftp"])
async def test_scp_both_ways(front_door: Entrance, tree: Path, tmp_path: Path, mode: str) -> None:
    if mode == "-O":
        (tree / "new\nline").unlink()  # the old protocol has no way to say this name
    client = front_door.client
    there, back = tmp_path / "there", tmp_path / "back"
    options = [*client.options(), mode, "-q", "-r", "-p", "-o", "User=web"]
    up = await run(["scp", *options, str(tree), f"{HOST}:{there}"])
    assert (up.status, up.stdout, up.errors) == (0, b"", "")
    assert contents(there) == contents(tree)
    down = await run(["scp", *options, f"{HOST}:{there}", str(back)])
    assert (down.status, down.errors) == (0, "")
    assert contents(back) == contents(tree)
    assert os.access(back / "deep" / "script", os.X_OK)


@pytest.mark.parametrize("mode", ["-O", "-s"], ids=["scp", "sftp"])
async def test_scp_of_a_missing_file_fails_in_words(
    front_door: Entrance, tmp_path: Path, mode: str
) -> None:
    options = [*front_door.client.options(), mode, "-o", "User=web"]
    done = await run(["scp", *options, f"{HOST}:{tmp_path / 'nothing'}", str(tmp_path / "x")])
    assert done.status == 1
    assert "No such file" in done.errors


async def test_sftp_batch(front_door: Entrance, tree: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    there = tmp_path / "there"
    batch = tmp_path / "batch"
    lines = [
        f"mkdir {there}",
        f"put -r {tree}/deep {there}/",
        f"rename {there}/deep/script {there}/deep/renamed",
        f"chmod 700 {there}/deep/renamed",
        f"ls -l {there}/deep",
        f"get -r {there}/deep {copy}",
        f"symlink renamed {there}/deep/link",
        f"rm {there}/deep/er/large",
        f"rmdir {there}/deep/er",
        f"df {there}",
    ]
    batch.write_text("\n".join(lines) + "\n")
    options = [*front_door.client.options(), "-o", "User=web"]
    done = await run(["sftp", *options, "-b", str(batch), HOST])
    assert (done.status, done.errors) == (0, "")
    assert "renamed" in done.text
    assert contents(copy)["er/large"] == contents(tree)["deep/er/large"]
    assert not (there / "deep" / "er").exists()
    assert (there / "deep" / "link").readlink() == Path("renamed")
    assert (there / "deep" / "renamed").stat().st_mode & 0o777 == 0o700


async def test_sftp_failure_has_its_status(front_door: Entrance, tmp_path: Path) -> None:
    batch = tmp_path / "batch"
    batch.write_text(f"get {tmp_path}/nothing\n")
    options = [*front_door.client.options(), "-o", "User=web"]
    done = await run(["sftp", *options, "-b", str(batch), HOST])
    assert done.status == 1
    assert "not found" in done.errors


async def test_rsync_both_ways(front_door: Entrance, tree: Path, tmp_path: Path) -> None:
    there, back = tmp_path / "there", tmp_path / "back"
    shell = shlex.join(["ssh", *front_door.client.options(), "-l", "web"])
    flags = ["-a", "--protect-args", "--checksum", "-e", shell]
    up = await run(["rsync", *flags, f"{tree}/", f"{HOST}:{there}/"])
    assert (up.status, up.stdout, up.errors) == (0, b"", "")
    assert contents(there) == contents(tree)
    (there / "empty").unlink()
    (there / "extra").touch()
    down = await run(["rsync", *flags, "--delete", f"{HOST}:{there}/", f"{back}/"])
    assert (down.status, down.errors) == (0, "")
    assert contents(back) == contents(there)


@pytest.mark.slow
@pytest.mark.parametrize("said", [b"", b"\0\0"])
async def test_a_client_of_sftp_that_leaves_at_once_is_no_failure(
    front_door: Entrance, capfd: pytest.CaptureFixture[str], said: bytes
) -> None:
    done = await front_door.client.run("web", "-s", "sftp", stdin=said)
    assert done == Done(0, b"", b"")
    assert "Traceback" not in capfd.readouterr().err


async def test_a_large_file_by_sftp_is_the_same(front_door: Entrance, tmp_path: Path) -> None:
    source, copy = tmp_path / "source", tmp_path / "copy"
    source.write_bytes(os.urandom(64 * MIB))
    options = [*front_door.client.options(), "-q", "-o", "User=web"]
    assert (await run(["scp", *options, str(source), f"{HOST}:{copy}"])).status == 0
    assert (await run(["cmp", str(source), str(copy)])).status == 0
    copy.unlink()
    assert (await run(["scp", *options, f"{HOST}:{source}", str(copy)])).status == 0
    assert (await run(["cmp", str(source), str(copy)])).status == 0


async def test_users_of_text_have_no_files(front_door: Entrance) -> None:
    options = [*front_door.client.options(), "-o", "User=cli"]
    done = await run(["sftp", *options, HOST])
    assert done.status == 255
    assert "no files" in done.errors
