"""Editors, copying programs and fio at work on the drive."""

from __future__ import annotations

import filecmp
import os
import stat
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.mount.programs.programs import SOURCE, digests, run

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def wrk(mounted_twice: tuple[Path, Path], request: pytest.FixtureRequest) -> Path:
    """A directory of this test."""
    made: Path = mounted_twice[0] / request.node.name
    made.mkdir()
    return made


def test_editors(wrk: Path) -> None:
    text = wrk / "text"
    text.write_text("one\ntwo\nthree\n")
    text.chmod(0o640)
    os.setxattr(text, "user.kept", b"yes")
    run("ed", "-s", text, given="2s/two/TWO/\nw\nq\n")
    run("sed", "-i", "s/one/ONE/", text)
    run("sed", "-i.bak", "s/three/THREE/", text)
    vim = ["vim", "-u", "NONE", "-es", "--not-a-term", "+normal Gofour", "+wq", str(text)]
    subprocess.run(
        vim, check=True, env={"HOME": str(wrk), "TERM": "dumb", "PATH": os.environ["PATH"]}
    )
    assert text.read_text() == "ONE\nTWO\nTHREE\nfour\n"
    assert text.stat().st_mode & 0o777 == 0o640
    assert sorted(path.name for path in wrk.iterdir()) == ["text", "text.bak"], (
        "no swap file is left"
    )


def test_find_and_grep(wrk: Path) -> None:
    run("cp", "-a", SOURCE, wrk / "tree")
    assert len(run("find", wrk / "tree", "-type", "f").splitlines()) == len(digests(SOURCE))
    (wrk / "new").touch()
    assert run("find", wrk, "-newer", wrk / "tree", "-name", "ne*") == f"{wrk}/new\n"
    assert run("find", wrk, "-xdev", "-samefile", wrk / "new") == f"{wrk}/new\n"
    assert "class Message" in run("grep", "-r", "class Message", wrk / "tree")
    run("find", wrk / "tree", "-depth", "-delete")
    assert os.listdir(wrk) == ["new"]


def sparse_tree(top: Path) -> None:
    """Holes, hard links, symbolic links, a fifo, odd names, times and modes."""
    top.mkdir()
    with (top / "sparse").open("wb") as file:
        file.truncate(1 << 20)
        file.seek(1 << 18)
        file.write(b"data" * 5000)
    (top / "one").write_bytes(b"linked")
    (top / "two").hardlink_to(top / "one")
    (top / "symbolic").symlink_to("one")
    (top / "dangling").symlink_to("/nowhere/at all")
    os.mkfifo(top / "fifo", 0o604)
    (top / "a\nb ünï").write_bytes(b"odd")
    (top / "set").write_bytes(b"x")
    (top / "set").chmod(0o4751)
    os.chown(top / "one", 1234, 567)
    os.utime(top / "one", ns=(1_000_000_001, 1_234_567_890_123_456_789))
    (top / "empty").mkdir(mode=0o1777)


def looks(top: Path, how: str) -> dict[str, tuple[object, ...]]:
    """What must be alike in a copy, as far as the copying program promises it."""
    found: dict[str, tuple[object, ...]] = {}
    for path in sorted(top.rglob("*")):
        s = path.lstat()
        regular = stat.S_ISREG(s.st_mode)
        links, size = (s.st_nlink, s.st_size) if regular else (0, 0)
        target = os.readlink(path) if path.is_symlink() else ""
        # The tar format has whole seconds; this rsync keeps times of regular files with -H.
        timed = how != "tar" and (regular or how != "rsync")
        mtime = s.st_mtime_ns if timed else 0
        found[path.name] = (s.st_mode, links, s.st_uid, s.st_gid, size, mtime, target)
    return found


COPIES = {
    "cp": ("cp", "-a", "{0}", "{1}"),
    "cp sparse": ("cp", "-a", "--sparse=always", "{0}", "{1}"),
    "rsync": ("rsync", "-aHSXA", "{0}/", "{1}/"),
    "tar": ("sh", "-c", "mkdir '{1}' && tar -cSf - -C '{0}' . | tar -xSf - -C '{1}'"),
    "pax": ("sh", "-c", "mkdir '{1}' && tar --format=pax -cf - -C '{0}' . | tar -xf - -C '{1}'"),
}


@pytest.mark.parametrize("how", COPIES)
@pytest.mark.parametrize("way", ["in", "within", "out"])
def test_copies_keep_everything(wrk: Path, tmp_path: Path, how: str, way: str) -> None:
    source = (tmp_path if way == "in" else wrk) / "source"
    copy = (tmp_path if way == "out" else wrk) / "copy"
    sparse_tree(source)
    run(*(word.format(source, copy) for word in COPIES[how]))
    assert looks(copy, how) == looks(source, how)
    assert (copy / "one").stat().st_ino == (copy / "two").stat().st_ino
    assert filecmp.cmp(source / "sparse", copy / "sparse", shallow=False)
    if how in ("cp sparse", "rsync", "tar"):
        assert (copy / "sparse").stat().st_blocks * 512 < 1 << 18, "the holes are still holes"
    run("rm", "-rf", wrk)


@pytest.mark.timeout(120)
def test_fio_verifies_what_it_wrote(wrk: Path) -> None:
    for name, options in {
        "random": ("--rw=randrw", "--bs=4k", "--size=2m"),
        "mixed": ("--rw=randwrite", "--bsrange=512-128k", "--bs_unaligned", "--size=6m"),
        "mapped": ("--rw=randwrite", "--bs=4k", "--size=2m", "--ioengine=mmap"),
        "direct": ("--rw=write", "--bs=256k", "--size=12m", "--direct=1"),
        "append": ("--rw=write", "--bs=16k", "--size=2m", "--file_append=1", "--fsync=16"),
    }.items():
        run(
            "fio",
            f"--name={name}",
            f"--directory={wrk}",
            "--verify=crc32c",
            "--verify_fatal=1",
            "--do_verify=1",
            "--verify_state_save=0",
            "--randseed=7",
            "--fallocate=none",
            "--thread",
            *options,
        )
