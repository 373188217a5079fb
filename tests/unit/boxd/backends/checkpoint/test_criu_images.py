"""Reading and changing images: of made-up ones, and of recorded ones."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from boxd.backends.checkpoint.criu_images import (
    FILES,
    MOUNTPOINTS,
    NAMES,
    REMAPS,
    DamagedImage,
    Field,
    OpenFile,
    Wire,
    linked,
    open_files,
    parse_image,
    parse_message,
    remapped,
    root_mount,
    with_hostname,
    with_sources,
    with_stand_ins,
    without_sizes,
    write_image,
    write_message,
)

RECORDED = Path(__file__).with_name("data")
"""Of CRIU 4.3: a box with two files open on /wrk, one of which had lost its name."""

numbers = st.integers(1, 2**29 - 1)
fields = st.one_of(
    st.builds(Field, numbers, st.just(Wire.VARINT), st.integers(0, 2**64 - 1)),
    st.builds(Field, numbers, st.just(Wire.BYTES), st.binary(max_size=300)),
    st.builds(Field, numbers, st.just(Wire.FIXED64), st.binary(min_size=8, max_size=8)),
    st.builds(Field, numbers, st.just(Wire.FIXED32), st.binary(min_size=4, max_size=4)),
)


def number(field: int, value: int) -> Field:
    return Field(field, Wire.VARINT, value)


def text(field: int, value: bytes) -> Field:
    return Field(field, Wire.BYTES, value)


def regular(file_id: int, name: bytes, *more: Field) -> bytes:
    """An entry of files.img, with its fields as CRIU writes them."""
    inner = [
        number(1, file_id),
        number(2, 0o2),
        number(3, 17),
        text(5, write_message([number(1, 0), number(2, 0), number(3, 0), number(4, 0)])),
        text(6, name),
        *more,
    ]
    return write_message([number(1, 1), number(2, file_id), text(3, write_message(inner))])


SOCKET = write_message([number(1, 4), number(2, 9), text(4, b"\x08\x09\x10\x01")])
MADE = write_image(
    [
        regular(1, b"/etc/passwd", number(7, 2 * 11), number(8, 100), number(10, 0o100644)),
        SOCKET,
        regular(2, b"/wrk/a", number(7, 2 * 12), number(8, 1000), number(10, 0o100644)),
        regular(3, b"/wrk", number(7, 2 * 12), number(10, 0o40755)),
        regular(4, b"/wrkshop/a", number(8, 5)),
        regular(5, b"/wrk/\xff", number(7, 1), number(8, 0)),
    ],
    FILES,
)


@given(st.lists(fields))
def test_messages_come_back(fields: list[Field]) -> None:
    assert parse_message(write_message(fields)) == fields


@given(st.lists(st.binary(max_size=200)), st.sampled_from([FILES, MOUNTPOINTS, REMAPS]))
def test_images_come_back(messages: list[bytes], kind: int) -> None:
    assert parse_image(write_image(messages, kind), kind) == messages


@given(st.binary(max_size=60))
def test_any_bytes_are_parsed_or_refused(data: bytes) -> None:
    for attempt in (parse_message, open_files, without_sizes, root_mount, remapped):
        for sample in (data, MADE[: len(data)] + data, MADE[:8] + data):
            with suppress(DamagedImage):
                attempt(sample)


@pytest.mark.parametrize(
    "data",
    [
        b"\x80",
        b"\xff" * 9 + b"\x7f",
        b"\x08",
        b"\x0a\x05abc",
        b"\x0b",
        b"\x0d\x01\x02",
        b"\x09\x01\x02",
    ],
)
def test_damaged_messages(data: bytes) -> None:
    with pytest.raises(DamagedImage):
        parse_message(data)


def test_other_kinds_and_cut_ones_are_refused() -> None:
    for data in (b"", MADE[:7], MADE[4:], MADE[:-1], MADE[:10]):
        with pytest.raises(DamagedImage):
            open_files(data)
    with pytest.raises(DamagedImage, match="another type"):
        root_mount(MADE)
    for there, missing in ((number(1, 1), 6), (text(6, b"/wrk"), 1)):
        entry = write_message([text(3, write_message([there]))])
        with pytest.raises(DamagedImage, match=f"lacks its field {missing}"):
            open_files(write_image([entry], FILES))


def test_what_is_open_on_the_drive() -> None:
    file, top, strange = open_files(MADE)
    assert file == OpenFile(2, b"/wrk/a", 1000, 0o100644, 0o2, 12)
    assert not file.is_directory
    assert top.name == b"/wrk"
    assert top.size is None
    assert top.is_directory
    assert strange == OpenFile(5, b"/wrk/\xff", 0, None, 0o2, -1)
    assert [found.name for found in open_files(MADE, b"/etc")] == [b"/etc/passwd"]


def test_lengths_are_taken_out_of_the_drive_alone() -> None:
    changed = without_sizes(MADE)
    assert {found.size for found in open_files(changed)} == {None}
    assert [found.size for found in open_files(changed, b"/etc")] == [100]
    assert [found.size for found in open_files(changed, b"/wrkshop")] == [5]
    before, after = parse_image(MADE, FILES), parse_image(changed, FILES)
    assert [a == b for a, b in zip(before, after, strict=True)] == [
        *(True, True, False, True, True, False),
    ]
    assert without_sizes(changed) == changed
    assert [found.size for found in open_files(without_sizes(MADE, [b"/etc/passwd"]), b"")] == [
        *(None, 1000, None, 5, 0),
    ]


def test_stand_ins() -> None:
    changed = with_stand_ins(MADE, {b"/wrk/a": b"/.gone-0"}, 11)
    assert [found.name for found in open_files(changed)] == [b"/wrk", b"/wrk/\xff"]
    [stand_in] = open_files(changed, b"/.gone-0")
    assert stand_in == OpenFile(2, b"/.gone-0", None, 0o100644, 0o2, 11)
    before, after = parse_image(MADE, FILES), parse_image(changed, FILES)
    assert [a == b for a, b in zip(before, after, strict=True)].count(False) == 1
    assert with_stand_ins(MADE, {b"/wrk/other": b"/x"}, 11) == MADE


@given(st.integers(-(2**31), 2**31 - 1))
def test_mounts_of_stand_ins(mount: int) -> None:
    changed = with_stand_ins(MADE, {b"/wrk/a": b"/.gone-0"}, mount)
    assert [found.mount_id for found in open_files(changed, b"/.gone-0")] == [mount]


def test_the_root() -> None:
    mounts = [
        write_message([number(1, 1), number(2, 40), text(7, b"/proc")]),
        write_message([number(1, 17), number(2, 41), text(7, b"/")]),
    ]
    assert root_mount(write_image(mounts, MOUNTPOINTS)) == 41
    with pytest.raises(DamagedImage, match="root"):
        root_mount(write_image(mounts[:1], MOUNTPOINTS))


def test_files_without_a_name() -> None:
    ghost = write_message([number(1, 7), number(2, 1), number(3, 1)])
    assert remapped(write_image([ghost], REMAPS)) == {7}
    for more in ([number(3, 0)], []):
        link = write_message([number(1, 8), number(2, 9), *more])
        assert remapped(write_image([ghost, link], REMAPS)) == {7, 8, 9}
    assert remapped(write_image([], REMAPS)) == frozenset()


def test_files_that_lost_one_of_their_names() -> None:
    ghost = write_message([number(1, 1), number(2, 1), number(3, 1)])
    link = write_message([number(1, 2), number(2, 9)])
    found = linked(write_image([ghost, link], REMAPS), MADE)
    assert [(file.name, file.mount_id) for file in found] == [(b"/wrk/a", 12)]
    assert linked(write_image([ghost], REMAPS), MADE) == []


@pytest.mark.parametrize(
    ("name", "kind"),
    [("files.img", FILES), ("mountpoints.img", MOUNTPOINTS), ("remap-fpath.img", REMAPS)],
)
def test_recorded_images_come_back(name: str, kind: int) -> None:
    data = (RECORDED / name).read_bytes()
    messages = parse_image(data, kind)
    assert write_image(messages, kind) == data
    assert [write_message(parse_message(message)) for message in messages] == messages


def test_recorded_images_are_understood() -> None:
    files = (RECORDED / "files.img").read_bytes()
    plain, ghost = open_files(files)
    assert (plain.name, plain.size, plain.mode) == (b"/wrk/plain", 1000, 0o100644)
    assert (ghost.name, ghost.size, ghost.mode) == (b"/wrk/ghost", 1000, 0o100644)
    assert plain.mount_id == ghost.mount_id
    assert remapped((RECORDED / "remap-fpath.img").read_bytes()) == {ghost.file_id}
    root = root_mount((RECORDED / "mountpoints.img").read_bytes())
    assert {file.mount_id for file in open_files(files, b"/root")} == {root}
    assert [file.size for file in open_files(without_sizes(files))] == [None, None]
    changed = with_stand_ins(files, {plain.name: b"/.gone-0"}, root)
    [stand_in] = open_files(changed, b"/.gone-0")
    assert (stand_in.mount_id, stand_in.size) == (root, None)
    assert len(parse_image(changed, FILES)) == len(parse_image(files, FILES))


def test_another_hostname() -> None:
    names = write_image([write_message([text(1, b"old"), text(2, b"domain")])], NAMES)
    (message,) = parse_image(with_hostname(names, "new"), NAMES)
    assert parse_message(message) == [text(1, b"new"), text(2, b"domain")]
    with pytest.raises(DamagedImage):
        with_hostname(write_image([write_message([number(3, 1)])], NAMES), "new")


def test_sources_that_the_box_removed_are_replaced() -> None:
    mask = [text(6, b"/null"), text(7, b"/proc/keys"), number(16, 1), text(18, b"/dev/null")]
    own = [text(6, b"/"), text(7, b"/proc"), number(16, 1)]
    image = write_image(map(write_message, (mask, own)), MOUNTPOINTS)
    assert parse_image(with_sources(image), MOUNTPOINTS) == [
        write_message([mask[0], mask[1], mask[3]]),
        write_message(own),
    ]
