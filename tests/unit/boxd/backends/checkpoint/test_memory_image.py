"""Images of memory: complete when they have their name, used once, refused when damaged."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from boxd.backends.checkpoint import memory_image
from boxd.backends.checkpoint.memory_image import Facts, State
from boxd.errors import MemoryLost

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

FACTS = Facts(box_id="b" * 32, bundle="digest", host="criu 4.3 linux 6.18")
STATE = State(drive=True, address="10.1.0.2", runtime="/state/runtime", rights={"NoNewPrivs": "1"})


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """A published image of a small file and a large one."""
    directory = tmp_path / "memory"
    place = memory_image.new(directory)
    (place / "files.img").write_bytes(b"small")
    (place / "pages.img").write_bytes(b"x" * 2_000_000)
    memory_image.publish(directory, FACTS, STATE, beside=[tmp_path])
    return directory


def test_it_is_there_when_it_is_published(tmp_path: Path, image: Path) -> None:
    assert memory_image.is_there(image)
    assert memory_image.check(image, FACTS) == STATE
    memory_image.check_pages(image)
    assert [path.name for path in tmp_path.iterdir()] == ["memory"]


def test_what_is_not_published_is_none(tmp_path: Path) -> None:
    directory = tmp_path / "memory"
    (memory_image.new(directory) / "files.img").touch()
    assert list(memory_image.new(directory).iterdir()) == []
    assert not memory_image.is_there(directory)
    with pytest.raises(MemoryLost, match="no memory"):
        memory_image.check(directory, FACTS)
    memory_image.drop_rests(directory)
    assert list(tmp_path.iterdir()) == []


def test_a_marked_one_is_none(image: Path) -> None:
    memory_image.mark(image).touch()
    assert memory_image.is_marked(image)
    assert not memory_image.is_there(image)
    with pytest.raises(MemoryLost, match="while"):
        memory_image.check(image, FACTS)


@pytest.mark.parametrize("sync", [True, False])
def test_a_forgotten_one_is_none(tmp_path: Path, image: Path, sync: bool) -> None:
    memory_image.forget(image, sync=sync)
    memory_image.forget(image, sync=sync)
    assert not memory_image.is_there(image)
    memory_image.drop_rests(image)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("field", ["box_id", "bundle", "host"])
def test_it_is_of_one_box_and_one_host(image: Path, field: str) -> None:
    with pytest.raises(MemoryLost, match="was saved"):
        memory_image.check(image, replace(FACTS, **{field: "other"}))


def test_a_copy_becomes_that_of_another_box(image: Path) -> None:
    memory_image.adopt(image, "c" * 32, "other")
    with pytest.raises(MemoryLost, match="another box"):
        memory_image.check(image, FACTS)
    assert memory_image.check(image, replace(FACTS, box_id="c" * 32, bundle="other")) == STATE


def _flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 4
    file.write_bytes(data)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "cut": lambda image: (image / "pages.img").write_bytes(b"x" * 1_999_999),
    "flipped": lambda image: _flip(image / "files.img"),
    "missing": lambda image: (image / "files.img").unlink(),
    "more": lambda image: (image / "more.img").touch(),
    "manifest flipped": lambda image: _flip(image / "manifest.json"),
    "manifest empty": lambda image: (image / "manifest.json").write_text(""),
}


@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_one_is_refused(image: Path, how: str) -> None:
    DAMAGES[how](image)
    with pytest.raises(MemoryLost, match=r"damaged|not complete"):
        memory_image.check(image, FACTS)


def test_a_flipped_bit_in_the_pages_is_found(image: Path) -> None:
    _flip(image / "pages.img")
    assert memory_image.check(image, FACTS) == STATE
    with pytest.raises(MemoryLost, match=r"is damaged \(pages\.img\)"):
        memory_image.check_pages(image)


@pytest.mark.parametrize("lasting", [False, True])
def test_pages_that_were_summed_while_they_grew(tmp_path: Path, lasting: bool) -> None:
    directory = tmp_path / "memory"
    place = memory_image.new(directory)
    pages, parts = memory_image.Pages(place, lasting=lasting), (b"a" * 700_001, b"b" * 900_000)
    for part in parts:
        with (place / "pages-1.img").open("ab") as file:
            file.write(part)
        pages.take()
    with (place / "pages-1.img").open("ab") as file:
        file.write(b"what came after the last look")
    memory_image.publish(directory, FACTS, STATE, pages=pages, beside=[tmp_path])
    memory_image.check_pages(directory)
    for at in (0, 700_001, 1_600_005):
        data = bytearray((directory / "pages-1.img").read_bytes())
        data[at] ^= 1
        (directory / "pages-1.img").write_bytes(data)
        with pytest.raises(MemoryLost, match="is damaged"):
            memory_image.check_pages(directory)
        data[at] ^= 1
        (directory / "pages-1.img").write_bytes(data)
    memory_image.check_pages(directory)


def test_pages_that_cannot_be_read_are_lost(image: Path) -> None:
    (image / "pages.img").unlink()
    (image / "pages.img").mkdir()
    with pytest.raises(MemoryLost, match="cannot be read"):
        memory_image.check_pages(image)


def test_one_of_another_release_is_lost_and_nothing_worse(
    image: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_image, "FORMAT", memory_image.FORMAT + 1)
    with pytest.raises(MemoryLost, match="another release"):
        memory_image.read(image)
    with pytest.raises(MemoryLost, match="another release"):
        memory_image.adopt(image, "b" * 32, "bundle")
