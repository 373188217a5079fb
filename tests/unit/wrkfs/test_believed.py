"""Telling appends from pages of mappings by the sizes that the kernel may believe."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from tests.unit.wrkfs.drive import ME, content, create
from wrkfs import believed
from wrkfs.believed import PAGE, BelievedSizes, ShownSizes
from wrkfs.types import ROOT_INO, Ino

if TYPE_CHECKING:
    import pytest

    from tests.unit.wrkfs.drive import Drive


def test_an_append_comes_at_the_size_that_was_shown() -> None:
    sizes = BelievedSizes(3 * PAGE)
    assert sizes.appends(3 * PAGE, 10)
    assert not sizes.appends(2 * PAGE, PAGE)
    assert not sizes.appends(17, 10)


def test_a_write_moves_the_end() -> None:
    sizes = BelievedSizes(PAGE)
    for number in range(1, 40):
        assert sizes.appends(number * PAGE, PAGE)
        sizes.wrote((number + 1) * PAGE, appended=True)
        assert not sizes.appends(number * PAGE, PAGE), "a page that was appended is written back"


def test_pages_that_are_written_back_do_not_move_the_end() -> None:
    sizes = BelievedSizes(10 * PAGE)
    for number in range(9):
        assert not sizes.appends(number * PAGE, PAGE)
        sizes.wrote((number + 1) * PAGE, appended=False)
    assert sizes.appends(10 * PAGE, 1)


def test_a_file_that_others_change_has_several_ends_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes = BelievedSizes(0)
    for size in (PAGE, 5 * PAGE, 2 * PAGE):
        sizes.show(size)
    for size in (0, PAGE, 5 * PAGE, 2 * PAGE):
        assert sizes.appends(size, 5)
    sizes.wrote(2 * PAGE + 5, appended=True)
    assert sizes.appends(2 * PAGE + 5, 1)
    assert not sizes.appends(PAGE, PAGE)
    monkeypatch.setattr(believed, "BELIEF", -1.0)
    sizes.show(7 * PAGE)
    sizes.show(9 * PAGE)
    assert not sizes.appends(7 * PAGE, PAGE), "nobody believes it any more"


def test_an_answer_that_the_kernel_refuses_hides_no_append() -> None:
    """It was computed while an append was under way: the kernel may believe either."""
    sizes = BelievedSizes(PAGE)
    assert sizes.appends(PAGE, PAGE)
    sizes.show(9 * PAGE)
    sizes.wrote(2 * PAGE, appended=True)
    assert sizes.appends(2 * PAGE, PAGE)
    assert sizes.appends(9 * PAGE, PAGE)


def test_without_a_size_only_whole_pages_are_from_a_mapping() -> None:
    sizes = BelievedSizes()
    assert sizes.appends(PAGE, 10)
    assert sizes.appends(5, PAGE)
    assert not sizes.appends(PAGE, 2 * PAGE)
    sizes.show(PAGE)
    assert sizes.appends(PAGE, PAGE)


def test_shown_sizes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(believed, "SHOWN_MAX", 2)
    shown = ShownSizes()
    for number in range(1, 4):
        shown.show(Ino(number), number * 10)
    assert [shown.take(Ino(number)) for number in range(1, 4)] == [None, 20, 30]
    assert shown.take(Ino(3)) is None


async def test_a_handle_keeps_pages_in_their_place(drive: Drive) -> None:
    fs, other = await drive.mount(), await drive.mount()
    await (await create(fs)).close()
    attr = await fs.lookup(ROOT_INO, b"file")
    handle = await fs.open(attr.ino, os.O_RDWR | os.O_APPEND)
    await handle.write_from_kernel(0, b"a" * PAGE)
    await handle.write_from_kernel(PAGE, b"b" * 10)
    beyond = await other.open(attr.ino, os.O_WRONLY | os.O_APPEND)
    await handle.flush()
    await beyond.write(0, b"other")
    await beyond.close()
    await handle.write_from_kernel(PAGE + 10, b"stale end")
    await handle.write_from_kernel(0, b"A" * PAGE)
    await handle.close()
    assert await content(fs) == b"A" * PAGE + b"b" * 10 + b"other" + b"stale end"


async def test_a_truncated_file_is_appended_to_at_its_new_end(drive: Drive) -> None:
    fs = await drive.mount()
    handle = await create(fs, flags=os.O_RDWR | os.O_APPEND)
    await handle.write_from_kernel(0, b"a" * 100)
    for flags in (os.O_TRUNC | os.O_WRONLY, os.O_TRUNC | os.O_RDWR):
        await (await fs.open(handle.ino, flags)).close()
        await handle.write_from_kernel(0, b"b" * 100)
    _, again = await fs.create(ROOT_INO, b"file", 0o600, os.O_WRONLY | os.O_TRUNC, ME)
    await handle.write_from_kernel(0, b"c")
    await again.close()
    await handle.close()
    assert await content(fs) == b"c"
