"""Keys as file names, and files in the order of their keys."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from objectserver.files import (
    DamagedObject,
    NoSuchObject,
    ObjectExists,
    ObjectFiles,
    ObjectInfo,
    open_file,
    read_info,
)
from objectserver.listing import Walk
from objectserver.names import MAX_KEY, OBJECT, BadKey, key_to_path

if TYPE_CHECKING:
    from pathlib import Path

ALPHABET = st.sampled_from([*"ab/.-+%~\\:", "é", "雪", "A", " "])
KEYS = st.one_of(
    st.text(ALPHABET, min_size=1, max_size=12),
    st.builds(lambda n, c, t: c * n + t, st.integers(190, 420), st.sampled_from("aé"), ALPHABET),
)
SETTINGS = settings(
    max_examples=200,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@given(KEYS, KEYS)
def test_no_two_keys_share_a_file_and_none_leaves_its_directory(one: str, other: str) -> None:
    names = key_to_path(one)
    assert (names == key_to_path(other)) == (one == other)
    for name in names:
        assert name not in (".", "..", "")
        assert "/" not in name
        assert len(name) <= 255
    assert names[-1].endswith(OBJECT)
    assert not any(name.endswith(OBJECT) for name in names[:-1])


@pytest.mark.parametrize(
    "key", ["", "a\x00b", "a\nb", "\x7f", "\ud800", "\ufffe", "a" * (MAX_KEY + 1), "é" * 513]
)
def test_keys_that_cannot_be(key: str) -> None:
    with pytest.raises(BadKey):
        key_to_path(key)


def put(files: ObjectFiles, key: str, body: bytes = b"x", *, only_new: bool = False) -> None:
    spool = files.spool()
    try:
        spool.write(memoryview(body))
        spool.seal(ObjectInfo(len(body), "tag", 0.0, {"a": "b"}))
        files.publish(spool, key, only_new=only_new)
    finally:
        spool.discard()


@SETTINGS
@given(
    keys=st.sets(KEYS, max_size=12),
    prefix=st.text(ALPHABET, max_size=3),
    after=st.text(ALPHABET, max_size=3),
)
def test_a_walk_is_the_sorted_keys(
    tmp_path_factory: pytest.TempPathFactory, keys: set[str], prefix: str, after: str
) -> None:
    files = ObjectFiles(tmp_path_factory.mktemp("objects"))
    files.prepare()
    for key in keys:
        put(files, key)
    start, low = prefix.encode(), after.encode()
    wanted = sorted(k for k in map(str.encode, keys) if k.startswith(start) and k > low)
    assert [key for key, _ in Walk(files.data, start, low)] == wanted
    skipping = Walk(files.data, start, low)
    seen = []
    for found, _ in skipping:
        seen.append(found)
        skipping.skip(found[: len(start) + 1])
    expected: list[bytes] = []
    for found in wanted:
        if not expected or not found.startswith(expected[-1][: len(start) + 1]):
            expected.append(found)
    assert seen == expected
    files.delete(sorted(keys))
    assert list(files.data.iterdir()) == []


def test_read_back_overwrite_only_new_delete(tmp_path: Path) -> None:
    files = ObjectFiles(tmp_path)
    files.prepare()
    put(files, "k/one", b"first")
    with pytest.raises(ObjectExists):
        put(files, "k/one", b"second", only_new=True)
    opened = files.open("k/one")
    assert os.pread(opened.descriptor, 100, 0).startswith(b"first")
    assert opened.info == ObjectInfo(5, "tag", 0.0, {"a": "b"})
    put(files, "k/one", b"third!")
    assert os.pread(opened.descriptor, 5, 0) == b"first"
    os.close(opened.descriptor)
    assert read_info(files.path("k/one")).size == 6
    put(files, "k/two", b"", only_new=True)
    files.delete(["k/one", "absent", "k/absent/x"])
    with pytest.raises(NoSuchObject):
        files.open("k/one")
    with pytest.raises(NoSuchObject):
        files.open("k/two/below-a-file")
    assert list((tmp_path / "tmp").iterdir()) == []


def test_headers_longer_than_the_first_read(tmp_path: Path) -> None:
    files = ObjectFiles(tmp_path)
    files.prepare()
    spool = files.spool()
    info = ObjectInfo(0, "tag", 1.5, {f"x-amz-meta-{n}": "v" * 200 for n in range(20)})
    spool.seal(info)
    files.publish(spool, "k")
    spool.discard()
    assert read_info(files.path("k")) == info


@pytest.mark.parametrize("damage", [b"", b"short", b"x" * 4000])
def test_damage_is_seen(tmp_path: Path, damage: bytes) -> None:
    files = ObjectFiles(tmp_path)
    files.prepare()
    put(files, "k", b"y" * 5000)
    path = files.path("k")
    for content in (damage, path.read_bytes()[3:], path.read_bytes()[:-3]):
        path.write_bytes(content)
        with pytest.raises(DamagedObject):
            open_file(path)
        put(files, "k", b"y" * 5000)
    whole = bytearray(path.read_bytes())
    whole[-30] ^= 1
    path.write_bytes(whole)
    with pytest.raises(DamagedObject):
        open_file(path)


class _LostDirectory(ObjectFiles):
    """A disk on which directories cannot be synced."""

    def _sync(self, directory: Path, removals: int) -> None:
        raise OSError(5, f"no sync of {directory} after {removals}")


def test_an_object_whose_name_is_not_durable_is_not_stored(tmp_path: Path) -> None:
    files = ObjectFiles(tmp_path)
    files.prepare()
    put(files, "old")
    broken = _LostDirectory(tmp_path)
    for key in ("new", "old"):
        with pytest.raises(OSError, match="no sync"):
            put(broken, key)
    with pytest.raises(NoSuchObject):
        files.open("new")
    assert read_info(files.path("old")).size == 1
    assert list((tmp_path / "tmp").iterdir()) == []


def test_leftovers_are_removed_at_start(tmp_path: Path) -> None:
    files = ObjectFiles(tmp_path)
    files.prepare()
    spool = files.spool()
    os.close(spool.descriptor)
    ObjectFiles(tmp_path).prepare()
    assert list((tmp_path / "tmp").iterdir()) == []


def test_writers_and_deleters_of_one_directory(tmp_path: Path) -> None:
    """Empty directories vanish under the writers; no acknowledged object does."""
    files = ObjectFiles(tmp_path)
    files.prepare()
    failures: list[BaseException] = []

    def work(name: str) -> None:
        try:
            for _ in range(60):
                put(files, f"shared/deep/{name}", b"x")
                assert read_info(files.path(f"shared/deep/{name}")).size == 1
                files.delete([f"shared/deep/{name}"])
            put(files, f"shared/deep/{name}", b"x")
        except BaseException as error:
            failures.append(error)
            raise

    threads = [threading.Thread(target=work, args=(str(n),)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert [key for key, _ in Walk(files.data, b"")] == [b"shared/deep/%d" % n for n in range(4)]
