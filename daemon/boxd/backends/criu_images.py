"""Images of a dump that are read, and changed, before their restore. Pure.

CRIU refuses to restore a box when a file that it has open or mapped has another length than at
the dump, or is gone. On /wrk both come about while a box sleeps, because others work there. So
the lengths are taken out, and a file that is gone is replaced by one that stands in for it:
*measured*, CRIU 4.3 then restores the box, which sees the file as it is now, or an unlinked one.

An image is a head of two numbers and then messages, each behind its length (32 bits, little
endian). The messages are Protocol Buffers; only fields that are needed are understood, all others
keep their bytes and their order. Images are written by CRIU from what a box's processes do, so a
box has a say in them: whatever does not parse is refused by DamagedImage.
"""

from __future__ import annotations

import stat
import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

from boxd.backends.bundle import DRIVE_DIR
from boxd.errors import BoxdError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

COMMON = 0x54564319
"""The first number of every image of present versions."""
FILES = 0x56303138
"""Of `files.img`: what the box has open."""
MOUNTPOINTS = 0x55563928
"""Of `mountpoints-*.img`: what is mounted in it."""
REMAPS = 0x59133954
"""Of `remap-fpath.img`: which of its files had no name at the dump."""
NAMES = 0x54473203
"""Of `utsns-*.img`: what the box calls itself."""
_DRIVE = DRIVE_DIR.encode()
_HEAD = struct.Struct("<II")
_LENGTH = struct.Struct("<I")
_MOST_VARINT = 10

# Numbers of the fields that are used, by message.
_FILE_REGULAR = 3
_REGULAR_ID, _REGULAR_FLAGS, _REGULAR_NAME, _REGULAR_MOUNT = 1, 2, 6, 7
_REGULAR_SIZE, _REGULAR_MODE = 8, 10
_MOUNT_ID, _MOUNT_POINT = 2, 7
_REMAP_FILE, _REMAP_BY, _REMAP_HOW = 1, 2, 3
_LINKED = 0
_HOSTNAME = 1


class DamagedImage(BoxdError):
    """The image is not what it should be: cut short, or of another kind."""


class Wire(IntEnum):
    """How a field is written."""

    VARINT = 0
    FIXED64 = 1
    BYTES = 2
    FIXED32 = 5


_FIXED = {Wire.FIXED64: 8, Wire.FIXED32: 4}


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a message. The value is a number for VARINT, bytes for all others."""

    number: int
    wire: Wire
    value: int | bytes


@dataclass(frozen=True, slots=True)
class OpenFile:
    """A file or directory that processes of the box have open, mapped, or work in.

    `size` is None where none is compared. A file that is mapped as well is listed twice.
    """

    file_id: int
    name: bytes
    size: int | None
    mode: int | None
    flags: int
    mount_id: int

    @property
    def is_directory(self) -> bool:
        """Whether it is one."""
        return self.mode is not None and stat.S_ISDIR(self.mode)


def parse_message(data: bytes) -> list[Field]:
    """The fields of a message, in their order. Raises DamagedImage."""
    fields: list[Field] = []
    place = 0
    while place < len(data):
        key, place = _varint(data, place)
        try:
            wire = Wire(key & 7)
        except ValueError:
            raise DamagedImage(f"a field is written in an unknown way ({key & 7})") from None
        if wire is Wire.VARINT:
            value, place = _varint(data, place)
            fields.append(Field(key >> 3, wire, value))
            continue
        length = _FIXED.get(wire)
        if length is None:
            length, place = _varint(data, place)
        fields.append(Field(key >> 3, wire, _slice(data, place, length)))
        place += length
    return fields


def write_message(fields: Iterable[Field]) -> bytes:
    """A message of these fields."""
    parts: list[bytes] = []
    for field in fields:
        parts.append(_as_varint(field.number << 3 | field.wire))
        if isinstance(field.value, int):
            parts.append(_as_varint(field.value))
            continue
        if field.wire is Wire.BYTES:
            parts.append(_as_varint(len(field.value)))
        parts.append(field.value)
    return b"".join(parts)


def parse_image(data: bytes, kind: int) -> list[bytes]:
    """The messages of an image of a kind. Raises DamagedImage."""
    if _HEAD.size > len(data) or _HEAD.unpack_from(data) != (COMMON, kind):
        raise DamagedImage("the image is of another kind, or of another version of CRIU")
    messages: list[bytes] = []
    place = _HEAD.size
    while place < len(data):
        (length,) = _LENGTH.unpack(_slice(data, place, _LENGTH.size))
        place += _LENGTH.size
        messages.append(_slice(data, place, length))
        place += length
    return messages


def write_image(messages: Iterable[bytes], kind: int) -> bytes:
    """An image of these messages."""
    parts = [_HEAD.pack(COMMON, kind)]
    for message in messages:
        parts += [_LENGTH.pack(len(message)), message]
    return b"".join(parts)


def open_files(files: bytes, below: bytes = _DRIVE) -> list[OpenFile]:
    """What a box has open at and below a directory, from its `files.img`."""
    found = []
    for message in parse_image(files, FILES):
        for field in parse_message(message):
            if field.number == _FILE_REGULAR and isinstance(field.value, bytes):
                file = _open_file(parse_message(field.value))
                if _is_below(file.name, below):
                    found.append(file)
    return found


def without_sizes(files: bytes, below: bytes = _DRIVE) -> bytes:
    """The `files.img` in which no length is told of what is at and below a directory."""

    def change(fields: list[Field]) -> list[Field]:
        if not _is_below(_bytes(fields, _REGULAR_NAME), below):
            return fields
        return [field for field in fields if field.number != _REGULAR_SIZE]

    return _changed(files, change)


def with_stand_ins(files: bytes, names: Mapping[bytes, bytes], mount_id: int) -> bytes:
    """The `files.img` in which files are others: new names, below the mount `mount_id`.

    What stands in has to be there at the restore, as the same kind of file and with at least the
    length of what it stands in for, and may be removed after it: the box then has an unlinked
    file. Files of `remapped` must stay out of it: those CRIU brings back itself.
    """

    def change(fields: list[Field]) -> list[Field]:
        name = names.get(_bytes(fields, _REGULAR_NAME))
        if name is None:
            return fields
        kept = [field for field in fields if field.number not in (_REGULAR_SIZE, _REGULAR_MOUNT)]
        place = next(i for i, field in enumerate(kept) if field.number == _REGULAR_NAME)
        kept[place : place + 1] = [
            Field(_REGULAR_NAME, Wire.BYTES, name),
            Field(_REGULAR_MOUNT, Wire.VARINT, _zigzag(mount_id)),
        ]
        return kept

    return _changed(files, change)


def root_mount(mountpoints: bytes) -> int:
    """The id of the mount of the box's root, from its `mountpoints-*.img`."""
    for message in parse_image(mountpoints, MOUNTPOINTS):
        fields = parse_message(message)
        if _bytes(fields, _MOUNT_POINT) in (b"/", b"./"):
            return _number(fields, _MOUNT_ID)
    raise DamagedImage("no mount of the image is the root")


def remapped(remaps: bytes) -> frozenset[int]:
    """Ids of open files that had no name at the dump, from `remap-fpath.img` (if there is one).

    One that had another name elsewhere got a new one beside the old one for the dump; that link is
    a file of `files.img`, too, and its id is among them.
    """
    found = set()
    for message in parse_image(remaps, REMAPS):
        fields = parse_message(message)
        found.add(_number(fields, _REMAP_FILE))
        if _number([Field(_REMAP_HOW, Wire.VARINT, _LINKED), *fields], _REMAP_HOW) == _LINKED:
            found.add(_number(fields, _REMAP_BY))
    return frozenset(found)


def with_hostname(names: bytes, hostname: str) -> bytes:
    """The `utsns-*.img` in which the box has another name."""
    messages = []
    for message in parse_image(names, NAMES):
        fields = parse_message(message)
        _bytes(fields, _HOSTNAME)
        messages.append(
            write_message(
                Field(_HOSTNAME, Wire.BYTES, hostname.encode())
                if field.number == _HOSTNAME
                else field
                for field in fields
            )
        )
    return write_image(messages, NAMES)


def _changed(files: bytes, change: Callable[[list[Field]], list[Field]]) -> bytes:
    """The `files.img` with each regular file's fields changed."""
    messages = []
    for message in parse_image(files, FILES):
        fields = parse_message(message)
        for place, field in enumerate(fields):
            if field.number == _FILE_REGULAR and isinstance(field.value, bytes):
                regular = write_message(change(parse_message(field.value)))
                fields[place] = Field(field.number, field.wire, regular)
        messages.append(write_message(fields))
    return write_image(messages, FILES)


def _open_file(fields: list[Field]) -> OpenFile:
    known = {field.number for field in fields}
    return OpenFile(
        file_id=_number(fields, _REGULAR_ID),
        name=_bytes(fields, _REGULAR_NAME),
        size=_number(fields, _REGULAR_SIZE) if _REGULAR_SIZE in known else None,
        mode=_number(fields, _REGULAR_MODE) if _REGULAR_MODE in known else None,
        flags=_number(fields, _REGULAR_FLAGS),
        mount_id=_unzigzag(_number(fields, _REGULAR_MOUNT)) if _REGULAR_MOUNT in known else -1,
    )


def _is_below(name: bytes, directory: bytes) -> bool:
    return name == directory or name.startswith(directory + b"/")


def _number(fields: list[Field], number: int) -> int:
    """The last value, as the format wants it."""
    for field in reversed(fields):
        if field.number == number and isinstance(field.value, int):
            return field.value
    raise DamagedImage(f"a message lacks its field {number}")


def _bytes(fields: list[Field], number: int) -> bytes:
    for field in reversed(fields):
        if field.number == number and isinstance(field.value, bytes):
            return field.value
    raise DamagedImage(f"a message lacks its field {number}")


def _varint(data: bytes, place: int) -> tuple[int, int]:
    """A number of variable length, and where it ends."""
    value = 0
    for count, byte in enumerate(data[place : place + _MOST_VARINT]):
        value |= (byte & 0x7F) << (7 * count)
        if byte < 0x80:
            if value >> 64:
                break
            return value, place + count + 1
    raise DamagedImage("a number is cut short or too large")


def _as_varint(value: int) -> bytes:
    parts = bytearray()
    while value >= 0x80:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def _slice(data: bytes, place: int, length: int) -> bytes:
    if place + length > len(data):
        raise DamagedImage("the image is cut short")
    return data[place : place + length]


def _zigzag(value: int) -> int:
    return value << 1 if value >= 0 else (-value << 1) - 1


def _unzigzag(value: int) -> int:
    return value >> 1 if value & 1 == 0 else -(value >> 1) - 1
