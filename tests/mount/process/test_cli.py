"""The commands of `wrkfs` on a real volume."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import shutil
import subprocess
import sys
from datetime import timedelta
from typing import TYPE_CHECKING

import asyncpg
import pytest

from tests.harness.loop import run
from tests.harness.mounts.drive import fresh_volume, send_changes
from tests.harness.volumes.leaks import listed, missing_objects
from tests.harness.wait import DEADLINE
from wrkfs.data.s3 import S3Blocks
from wrkfs.fs import Filesystem
from wrkfs.layout import block_key
from wrkfs.types import SliceId
from wrkfs.upkeep import gc

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.harness.mounts.drive import MountProcess
    from tests.harness.servers.objectserver import ObjectServer
    from wrkfs.config import VolumeConfig


@pytest.fixture
def credentials(volume: VolumeConfig, tmp_path: Path) -> Path:
    """The volume's credential file."""
    path = tmp_path / "credentials"
    path.write_text(volume.to_json())
    path.chmod(0o600)
    return path


def wrkfs(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Runs the command."""
    return subprocess.run(
        [sys.executable, "-m", "wrkfs.cli", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
    )


def test_stat_tells_where_the_bytes_are(
    mount: Callable[[], MountProcess], credentials: Path
) -> None:
    path = mount().path
    (path / "small").write_bytes(b"x")
    (path / "d").mkdir()
    (path / "d/big").write_bytes(bytes(200_000))
    (path / "link").symlink_to("small")
    small = wrkfs("stat", "--credentials", credentials, "/small")
    assert small.returncode == 0, small.stderr
    assert "of 1 in the database" in small.stdout
    big = wrkfs("stat", "--credentials", credentials, "d/big")
    assert "size      200000 (195.3 KiB)" in big.stdout
    assert "of 200000 in the store" in big.stdout
    assert "target    'small'" in wrkfs("stat", "--credentials", credentials, "link").stdout
    assert "directory" in wrkfs("stat", "--credentials", credentials).stdout


def test_df_counts(mount: Callable[[], MountProcess], credentials: Path) -> None:
    (mount().path / "f").write_bytes(bytes(3 << 20))
    shown = wrkfs("df", "--credentials", credentials)
    assert shown.returncode == 0, shown.stderr
    rows = [line.split() for line in shown.stdout.splitlines()]
    assert rows[1][:3] == ["bytes", "3.0", "MiB"]
    assert rows[2][:3] == ["inodes", "1", "none"]


def test_json_tells_the_same(mount: Callable[[], MountProcess], credentials: Path) -> None:
    path = mount().path
    (path / "f").write_bytes(bytes(200_000))
    shown = json.loads(wrkfs("stat", "--json", "--credentials", credentials, "f").stdout)
    assert (shown["size"], shown["type"], len(shown["slices"])) == (200_000, "regular file", 1)
    assert shown["slices"][0]["place"] == "store"
    used = json.loads(wrkfs("df", "--json", "--credentials", credentials).stdout)
    assert (used["bytes_used"], used["inodes_used"], used["bytes_limit"]) == (200_000, 1, None)


def test_json_of_names_that_are_not_utf8(
    mount: Callable[[], MountProcess], credentials: Path
) -> None:
    path = mount().path
    name = os.fsdecode(b"caf\xe9")
    (path / name).write_bytes(b"x")
    send_changes(path)
    (path / name).unlink()
    (row,) = json.loads(wrkfs("trash", "--credentials", credentials, "ls", "--json").stdout)
    assert (row["path"], row["encoded_path"]) == ("caf\ufffd", "caf%E9")
    back = wrkfs("trash", "--credentials", credentials, "restore", "--json", name)
    assert json.loads(back.stdout)["encoded_path"] == "caf%E9"
    assert (path / name).read_bytes() == b"x"


def test_fsck_is_clean_while_the_volume_is_mounted(
    mount: Callable[[], MountProcess], credentials: Path
) -> None:
    path = mount().path
    (path / "f").write_bytes(bytes(5_000_000))
    checked = wrkfs("fsck", "--data", "--credentials", credentials)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "clean\n", "")
    shown = json.loads(wrkfs("fsck", "--json", "--credentials", credentials).stdout)
    assert shown == {"clean": True, "findings": [], "mended": {}}


@pytest.mark.unclean
def test_fsck_tells_mends_and_tells_what_is_left(
    mount: Callable[[], MountProcess], credentials: Path, volume: VolumeConfig
) -> None:
    path = mount().path
    (path / "kept").write_bytes(b"x" * 1000)
    (path / "lost").write_bytes(b"y" * 1000)
    send_changes(path)
    run(damage(volume))
    found = wrkfs("fsck", "--credentials", credentials)
    assert found.returncode == 1
    assert "nlink 7, but 1 names" in found.stdout
    assert found.stdout.endswith("5 findings\n"), found.stdout
    mended = wrkfs("fsck", "--repair", "--credentials", credentials)
    assert mended.stdout.endswith("still wrong:\nclean\n"), mended.stdout
    assert mended.returncode == 0
    assert wrkfs("fsck", "--credentials", credentials).stdout == "clean\n"
    assert (path / "kept").read_bytes() == b"x" * 1000
    assert (path / "kept").stat().st_nlink == 1
    (found_again,) = (path / "lost+found").iterdir()
    assert found_again.read_bytes() == b"y" * 1000


async def damage(volume: VolumeConfig) -> None:
    """Links that are wrong, a name that is lost, use that is wrong, inline bytes of nobody."""
    connection = await asyncpg.connect(volume.meta_dsn)
    try:
        await connection.execute("""
            UPDATE inode SET nlink = 7 FROM dentry d WHERE d.name = 'kept' AND d.ino = inode.ino;
            DELETE FROM dentry WHERE name = 'lost';
            UPDATE usage SET bytes = bytes + 100;
            INSERT INTO inline VALUES (3, 'x');
            INSERT INTO xattr VALUES (77777, 'user.a', '')""")
    finally:
        await connection.close()


@pytest.mark.unclean
def test_fsck_finds_lost_and_changed_blocks(
    mount: Callable[[], MountProcess],
    credentials: Path,
    volume: VolumeConfig,
    objectserver: ObjectServer,
) -> None:
    path = mount().path
    for name in ("whole", "changed", "lost"):
        (path / name).write_bytes(name.encode() * 100_000)
    slices = {
        name: json.loads(wrkfs("stat", "--json", "--credentials", credentials, name).stdout)
        for name in ("changed", "lost")
    }
    run(swap(volume, slices["changed"]["slices"][0]["slice"], slices["lost"]["slices"][0]["slice"]))
    found = wrkfs("fsck", "--data", "--json", "--credentials", credentials)
    assert found.returncode == 1
    findings = json.loads(found.stdout)["findings"]
    assert {one["inode"] for one in findings} == {one["ino"] for one in slices.values()}
    assert {one["invariant"] for one in findings} == {"data"}
    assert any("checksum" in one["detail"] for one in findings)
    assert any("is missing" in one["detail"] for one in findings), findings


async def swap(volume: VolumeConfig, changed: int, lost: int) -> None:
    """Gives one block other bytes, and removes another."""
    blocks = S3Blocks(volume.store)
    try:
        await blocks.put(block_key(volume.store.prefix, SliceId(changed), 0), bytes(700_000))
        await blocks.delete([block_key(volume.store.prefix, SliceId(lost), 0)])
    finally:
        await blocks.close()


def test_a_dump_is_loaded_into_another_volume(
    mount: Callable[[], MountProcess],
    credentials: Path,
    drive_database: str,
    objectserver: ObjectServer,
    tmp_path: Path,
) -> None:
    path = mount().path
    (path / "d").mkdir()
    (path / "d/f").write_bytes(b"content" * 100_000)
    archive = tmp_path / "archive.tar"
    dumped = wrkfs("dump", "--credentials", credentials, archive)
    assert dumped.stdout == "3 entries, 683.6 KiB\n", dumped.stderr
    assert archive.stat().st_mode & 0o77 == 0
    assert [entry.name for entry in tmp_path.iterdir() if entry.name.startswith(".")] == []
    piped = subprocess.run(
        [sys.executable, "-m", "wrkfs.cli", "dump", "--credentials", credentials, "-"],
        capture_output=True,
        check=True,
        timeout=50,
    )
    assert len(piped.stdout) == archive.stat().st_size
    with fresh_volume(drive_database, objectserver) as other:
        (tmp_path / "other").write_text(other.to_json())
        (tmp_path / "other").chmod(0o600)
        loaded = wrkfs("load", "--credentials", tmp_path / "other", archive)
        assert loaded.returncode == 0, loaded.stderr
        shown = json.loads(
            wrkfs("stat", "--json", "--credentials", tmp_path / "other", "d/f").stdout
        )
        assert shown["size"] == 700_000
        again = wrkfs("load", "--credentials", tmp_path / "other", archive)
        assert (again.returncode, again.stdout) == (1, "")
        assert "an empty volume" in again.stderr
        assert wrkfs("fsck", "--data", "--credentials", tmp_path / "other").stdout == "clean\n"


async def collected(volume: VolumeConfig, slices: int) -> None:
    """Collects so many slices, once every session has told that it reads nothing older."""
    fs = await Filesystem.connect(volume)
    try:
        async with asyncio.timeout(DEADLINE):
            while slices > 0:
                slices -= (await gc.collect(fs, grace=timedelta(0))).slices
    finally:
        await fs.close()
    assert slices == 0


def test_what_was_removed_is_listed_restored_and_freed(
    mount: Callable[[], MountProcess], credentials: Path, volume: VolumeConfig
) -> None:
    path = mount().path
    (path / "d").mkdir()
    for name in ("d/one", "d/two", "three"):
        (path / name).write_bytes(name.encode() * 50_000)
    send_changes(path)
    shutil.rmtree(path / "d")
    (path / "three").unlink()
    shown = json.loads(wrkfs("trash", "--json", "--credentials", credentials, "ls").stdout)
    assert [(row["path"], row["directory"], row["bytes"]) for row in shown] == [
        ("d/one", False, 250_000),
        ("d/two", False, 250_000),
        ("d", True, 0),
        ("three", False, 250_000),
    ]
    assert json.loads(wrkfs("trash", "ls", "--credentials", credentials, "--json").stdout) == shown
    unnamed = wrkfs("trash", "ls")
    assert (unnamed.returncode, "--credentials" in unnamed.stderr) == (2, True)
    text = wrkfs("trash", "--credentials", credentials, "ls", "/d").stdout
    assert text.endswith("3 entries, 488.3 KiB\n"), text
    back = wrkfs("trash", "--credentials", credentials, "restore", "/d/two")
    assert (back.returncode, back.stdout) == (
        0,
        "'d/two': 1 file restored\n",
    ), back.stderr
    assert (path / "d/two").read_bytes() == b"d/two" * 50_000
    number = str(shown[3]["number"])
    named = ("--number", number)
    wrkfs("trash", "--credentials", credentials, "restore", *named, "--to", "d/elsewhere")
    assert (path / "d/elsewhere").read_bytes() == b"three" * 50_000
    (path / number).write_bytes(b"a name of digits")
    (path / number).unlink()
    wrkfs("trash", "--credentials", credentials, "restore", number, "--to", "d/digits")
    assert (path / "d/digits").read_bytes() == b"a name of digits"
    (path / "d/digits").unlink()
    taken = wrkfs("trash", "restore", "/three", "--credentials", credentials)
    assert (taken.returncode, taken.stderr.count("\n")) == (1, 1)
    assert wrkfs("trash", "--credentials", credentials, "empty").stdout == "2 entries purged\n"
    assert wrkfs("gc", "--grace", "0", "--credentials", credentials).returncode == 2
    young = json.loads(wrkfs("gc", "--json", "--compact", "--credentials", credentials).stdout)
    assert (young["slices"], young["compacted"]) == (0, 0)
    run(collected(volume, 1))
    assert not missing_objects(volume)
    assert len(listed(volume.store)) == 2


def test_errors_are_one_line(credentials: Path, tmp_path: Path) -> None:
    for arguments in (
        ("stat", "--credentials", credentials, "none"),
        ("stat", "--credentials", credentials, "../x"),
        ("df", "--credentials", tmp_path / "absent"),
    ):
        failed = wrkfs(*arguments)
        assert failed.returncode == 1
        assert failed.stderr.startswith("wrkfs: ")
        assert failed.stderr.count("\n") == 1
    assert wrkfs("df").returncode == 2
    assert wrkfs("fsck", "--credentials", tmp_path / "absent").returncode == 2
    nowhere = wrkfs("dump", "--credentials", credentials, tmp_path / "absent/archive")
    assert nowhere.returncode == 1
    assert nowhere.stderr.count("\n") == 1


def git(directory: Path, *command: str) -> str:
    """What git says in a repository."""
    me = ("-c", "user.name=me", "-c", "user.email=me@example.org", "-c", "init.defaultBranch=main")
    return subprocess.run(
        ["git", *me, "-C", directory, *command],
        check=True,
        capture_output=True,
        text=True,
        timeout=50,
    ).stdout


def tree(top: Path) -> dict[str, tuple[int, bytes]]:
    """Mode and content of everything below a directory."""
    shown = {}
    for path in sorted(top.rglob("*")):
        mode = path.lstat().st_mode
        content = b""
        if path.is_symlink():
            content = bytes(path.readlink())
        elif path.is_file():
            content = path.read_bytes()
        shown[str(path.relative_to(top))] = (mode, content)
    return shown


def test_a_fresh_git_repository_comes_back_whole(
    mount: Callable[[], MountProcess], credentials: Path
) -> None:
    """It has empty directories, empty files and symbolic links, all of them young."""
    path = mount().path
    top = path / "repository"
    top.mkdir()
    git(top, "init", "-q")
    (top / "package").mkdir()
    (top / "package/__init__.py").touch()
    (top / "package/code.py").write_text("code\n")
    (top / "link").symlink_to("package/code.py")
    git(top, "add", ".")
    git(top, "commit", "-qm", "first")
    (top / "empty").mkdir()
    before = tree(top)
    send_changes(top)
    shutil.rmtree(top)
    back = wrkfs("trash", "--credentials", credentials, "restore", "/repository")
    assert (back.returncode, back.stderr) == (0, "")
    after = tree(top)
    # What git had made for a moment and removed comes back as well.
    assert {name: after.get(name) for name in before} == before
    git(top, "fsck", "--strict")
    assert git(top, "status", "--porcelain") == ""
    assert git(top, "log", "--format=%s") == "first\n"


def state(top: Path) -> dict[str, tuple[object, ...]]:
    """Everything that a restore brings back of a directory and of what is below it."""
    shown: dict[str, tuple[object, ...]] = {}
    for name, (mode, content) in {".": (0, b""), **tree(top)}.items():
        found = (top / name).lstat()
        shown[name] = (
            *(mode, content, found.st_mode, found.st_uid, found.st_gid),
            *(found.st_ino, found.st_nlink, found.st_size, found.st_mtime_ns),
        )
    return shown


def test_a_clone_with_hard_links_comes_back_whole(
    mount: Callable[[], MountProcess], credentials: Path
) -> None:
    """Its objects have names outside of the tree; other files have two names in it."""
    path = mount().path
    origin, clone = path / "origin", path / "clone"
    origin.mkdir()
    git(origin, "init", "-q")
    for number in range(3):
        (origin / f"{number}").write_text(f"{number}\n")
        git(origin, "add", ".")
        git(origin, "commit", "-qm", f"{number}")
    git(path, "clone", "-q", "--local", "origin", "clone")
    (clone / "empty").mkdir(mode=0o2751)
    os.link(clone / "0", clone / "empty/same as 0")
    os.link(clone / "1", path / "1")
    (clone / "gone").write_text("twice")
    os.link(clone / "gone", clone / "also gone")
    os.utime(clone / "empty", ns=(1, 1_000_000_000_123_456_789))
    before = state(clone)
    linked = [row[6] for name, row in before.items() if name.startswith(".git/objects/")]
    assert linked.count(2) >= 9, "git has linked its objects"
    shutil.rmtree(clone)
    listed = json.loads(
        wrkfs("trash", "ls", "/clone", "--credentials", credentials, "--json").stdout
    )
    assert sum(row["link"] for row in listed) >= 9 + 3
    back = wrkfs("trash", "restore", "/clone", "--credentials", credentials)
    assert (back.returncode, back.stderr) == (0, ""), back.stdout
    after = state(clone)
    # What git had made for a moment and removed comes back as well.
    assert {name: after.get(name) for name in before} == before
    assert (path / "1").stat().st_nlink == 2
    for repository in (origin, clone):
        git(repository, "fsck", "--strict")
        assert git(repository, "status", "--porcelain", "-uno") == ""
    # Names that git had taken away before stay where they are.
    back = wrkfs("trash", "restore", "/clone/1", "--credentials", credentials)
    assert (back.returncode, back.stderr.count("\n")) == (1, 1)


def test_names_that_were_removed_before_the_tree_stay_in_the_trash(
    mount: Callable[[], MountProcess], credentials: Path
) -> None:
    """As programs do that link a file to its place: the old name is not brought back."""
    path = mount().path
    (path / "d/sub").mkdir(parents=True)
    (path / "d/sub/temporary").write_text("x")
    os.link(path / "d/sub/temporary", path / "d/sub/file")
    (path / "d/sub/temporary").unlink()
    (path / "d/later").write_text("y")
    shutil.rmtree(path / "d")
    back = wrkfs("trash", "restore", "/d", "--credentials", credentials)
    assert back.returncode == 0
    assert back.stdout.splitlines()[1:] == [
        "1 other name of restored files stayed in the trash, for example 'd/sub/temporary': "
        "removed earlier than the tree"
    ]
    assert [one.name for one in (path / "d/sub").iterdir()] == ["file"]
    back = wrkfs("trash", "restore", "/d/sub/temporary", "--credentials", credentials)
    assert (back.returncode, back.stderr) == (0, "")
    assert (path / "d/sub/temporary").samefile(path / "d/sub/file")


def test_what_stands_in_the_way_of_a_tree_is_listed(
    mount: Callable[[], MountProcess], credentials: Path
) -> None:
    path = mount().path
    (path / "d").mkdir()
    for name in ("d/one", "d/two"):
        (path / name).write_text("old")
    send_changes(path)
    shutil.rmtree(path / "d")
    (path / "d").mkdir()
    (path / "d/one").write_text("new")
    back = wrkfs("trash", "--credentials", credentials, "restore", "/d")
    assert back.returncode == 1
    assert "the path already exists: 'd/one'" in back.stdout
    assert [(path / name).read_text() for name in ("d/one", "d/two")] == ["new", "old"]


def test_a_list_that_nobody_reads_ends_in_silence(
    mount: Callable[[], MountProcess], credentials: Path
) -> None:
    path = mount().path
    for number in range(3):
        (path / f"{number}").write_text("x")
        (path / f"{number}").unlink()
    read, write = os.pipe()
    os.close(read)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "wrkfs.cli", "trash", "ls", "--credentials", credentials],
            stdout=write,
            stderr=subprocess.PIPE,
            check=False,
            timeout=50,
        )
    finally:
        os.close(write)
    assert (done.returncode, done.stderr) == (141, b"")


def test_locks_lists_what_programs_have_locked(
    mount: Callable[[], MountProcess], credentials: Path
) -> None:
    path = mount().path / "f"
    path.write_bytes(b"x")
    with path.open("r+b") as file:
        fcntl.lockf(file, fcntl.LOCK_EX, 5, 10)
        fcntl.flock(file, fcntl.LOCK_SH)
        given = wrkfs("locks", "--credentials", credentials, "--json")
        document = json.loads(given.stdout)
        assert document["complete"]
        assert [
            (one["inode"], one["kind"], one["mode"], one["first"], one["last"], one["state"])
            for one in document["locks"]
        ] == [
            (path.stat().st_ino, "flock", "read", 0, None, "held"),
            (path.stat().st_ino, "fcntl", "write", 10, 14, "held"),
        ]
        assert document["locks"][1]["pid"] == os.getpid()
        lines = wrkfs("locks", "--credentials", credentials).stdout.splitlines()
        assert lines[0].split()[:5] == ["INODE", "KIND", "MODE", "FIRST", "LAST"]
        assert lines[1].split()[4] == "END"
