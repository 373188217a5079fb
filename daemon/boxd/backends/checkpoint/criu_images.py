"""Parses the images of a CRIU dump and changes them before a restore. Pure functions.

A box may have files open or mapped at the dump. CRIU refuses to restore the box if the length of
such a file differs, or if the file is missing. On /wrk both happen while a box is suspended,
because other clients change files there. So this module removes the lengths from the images, and
replaces a missing file with a stand-in. *Measured*: CRIU 4.3 then restores the box. The box sees
the current file, or an unlinked one.

An image is a header of two numbers, followed by messages. Each message has its length in front (32
bits, little endian). The messages are Protocol Buffers. The module interprets only the fields that
it needs, and keeps the bytes and the order of all others. CRIU writes the images from the state of
the box's processes, so the content is untrusted. The functions raise DamagedImage for anything that
does not parse.
"""

from __future__ import annotations

import stat
import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

from boxd.backends.oci.bundle import DRIVE_DIR
from boxd.errors import BoxdError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

COMMON = 0x54564319
"""Magic number at the start of every image of current CRIU versions."""
FILES = 0x56303138
"""Magic number of `files.img`: the open files of the box."""
MOUNTPOINTS = 0x55563928
"""Magic number of `mountpoints-*.img`: the mounts in the box."""
REMAPS = 0x59133954
"""Magic number of `remap-fpath.img`: the open files that had no name at the dump."""
USERS = 0x55474906
"""Magic number of `userns-*.img`: the ranges of ids of the box."""
NAMES = 0x54473203
"""Magic number of `utsns-*.img`: the hostname of the box."""
_DRIVE = DRIVE_DIR.encode()
_HEAD = struct.Struct("<II")
_LENGTH = struct.Struct("<I")
_MOST_VARINT = 10

# Field numbers, by message.
_FILE_REGULAR = 3
_REGULAR_ID, _REGULAR_FLAGS, _REGULAR_NAME, _REGULAR_MOUNT = 1, 2, 6, 7
_REGULAR_SIZE, _REGULAR_MODE = 8, 10
_MOUNT_ID, _MOUNT_POINT, _MOUNT_DELETED, _MOUNT_KEY = 2, 7, 16, 18
_REMAP_FILE, _REMAP_BY, _REMAP_HOW = 1, 2, 3
_LINKED = 0
_HOSTNAME = 1
_LOWER_FIRST = 2


class DamagedImage(BoxdError):
    """The image is truncated, or has an unexpected type."""


class Wire(IntEnum):
    """Wire type of a field."""

    VARINT = 0
    FIXED64 = 1
    BYTES = 2
    FIXED32 = 5


_FIXED = {Wire.FIXED64: 8, Wire.FIXED32: 4}


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a message. The value is an int for VARINT, and bytes for all other types."""

    number: int
    wire: Wire
    value: int | bytes


@dataclass(frozen=True, slots=True)
class OpenFile:
    """A file or directory that the box has open or mapped, or that is a working directory.

    `size` is None if CRIU does not compare it. The list has a file twice if it is also mapped.
    """

    file_id: int
    name: bytes
    size: int | None
    mode: int | None
    flags: int
    mount_id: int

    @property
    def is_directory(self) -> bool:
        """Whether this is a directory."""
        return self.mode is not None and stat.S_ISDIR(self.mode)


def parse_message(data: bytes) -> list[Field]:
    """Return the fields of a message, in their order. Raises DamagedImage."""
    fields: list[Field] = []
    place = 0
    while place < len(data):
        key, place = _varint(data, place)
        try:
            wire = Wire(key & 7)
        except ValueError:
            raise DamagedImage(f"a field has the unknown wire type {key & 7}") from None
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
    """Encode fields as a message."""
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
    """Return the messages of an image of this kind. Raises DamagedImage."""
    if _HEAD.size > len(data) or _HEAD.unpack_from(data) != (COMMON, kind):
        raise DamagedImage("the image has another type, or is from another CRIU version")
    messages: list[bytes] = []
    place = _HEAD.size
    while place < len(data):
        (length,) = _LENGTH.unpack(_slice(data, place, _LENGTH.size))
        place += _LENGTH.size
        messages.append(_slice(data, place, length))
        place += length
    return messages


def write_image(messages: Iterable[bytes], kind: int) -> bytes:
    """Encode messages as an image of this kind."""
    parts = [_HEAD.pack(COMMON, kind)]
    for message in messages:
        parts += [_LENGTH.pack(len(message)), message]
    return b"".join(parts)


def open_files(files: bytes, below: bytes = _DRIVE) -> list[OpenFile]:
    """Return the open files at and below a directory, from `files.img`."""
    files_below = []
    for message in parse_image(files, FILES):
        for field in parse_message(message):
            if field.number == _FILE_REGULAR and isinstance(field.value, bytes):
                file = _open_file(parse_message(field.value))
                if _is_below(file.name, below):
                    files_below.append(file)
    return files_below


def without_sizes(files: bytes, places: Collection[bytes] = (_DRIVE,)) -> bytes:
    """Return `files.img` without the lengths of files at or below `places`."""

    def change(fields: list[Field]) -> list[Field]:
        name = _bytes(fields, _REGULAR_NAME)
        if not any(_is_below(name, place) for place in places):
            return fields
        return [field for field in fields if field.number != _REGULAR_SIZE]

    return _changed(files, change)


def with_stand_ins(files: bytes, names: Mapping[bytes, bytes], mount_id: int) -> bytes:
    """Return `files.img` with other names for some files, below the mount `mount_id`.

    Each stand-in must exist at the restore, be of the same kind, and be at least as long as the
    file that it replaces. The stand-in may be removed after the restore; the box then has an
    unlinked file. `names` must not contain files of `remapped`, because CRIU restores those itself.
    """

    def change(fields: list[Field]) -> list[Field]:
        name = names.get(_bytes(fields, _REGULAR_NAME))
        if name is None:
            return fields
        changed = [f for f in fields if f.number not in (_REGULAR_SIZE, _REGULAR_MOUNT)]
        place = next(i for i, field in enumerate(changed) if field.number == _REGULAR_NAME)
        changed[place : place + 1] = [
            Field(_REGULAR_NAME, Wire.BYTES, name),
            Field(_REGULAR_MOUNT, Wire.VARINT, _zigzag(mount_id)),
        ]
        return changed

    return _changed(files, change)


def root_mount(mountpoints: bytes) -> int:
    """Return the mount id of the box's root, from `mountpoints-*.img`."""
    for message in parse_image(mountpoints, MOUNTPOINTS):
        fields = parse_message(message)
        if _bytes(fields, _MOUNT_POINT) in (b"/", b"./"):
            return _number(fields, _MOUNT_ID)
    raise DamagedImage("no mount of the image is the root")


def with_sources(mountpoints: bytes) -> bytes:
    """Return `mountpoints-*.img` without the marks of removed sources on mounts that have a key.

    The key names another source for the restore. A box can remove its /dev/null, which masks files
    of the kernel. CRIU then tries to create the other source, and fails because it exists.
    """
    messages = []
    for message in parse_image(mountpoints, MOUNTPOINTS):
        fields = parse_message(message)
        if any(field.number == _MOUNT_KEY for field in fields):
            fields = [field for field in fields if field.number != _MOUNT_DELETED]
        messages.append(write_message(fields))
    return write_image(messages, MOUNTPOINTS)


def remapped(remaps: bytes) -> frozenset[int]:
    """Return ids of open files that had no name at the dump, from `remap-fpath.img`, if it exists.

    CRIU gives a file that has another name elsewhere a new link for the dump, next to its old name.
    `files.img` lists that link too, and the result includes its id.
    """
    ids = set()
    for message in parse_image(remaps, REMAPS):
        fields = parse_message(message)
        ids.add(_number(fields, _REMAP_FILE))
        if _number([Field(_REMAP_HOW, Wire.VARINT, _LINKED), *fields], _REMAP_HOW) == _LINKED:
            ids.add(_number(fields, _REMAP_BY))
    return frozenset(ids)


def linked(remaps: bytes, files: bytes) -> list[OpenFile]:
    """Return open files that lost this name and have another one elsewhere.

    CRIU makes a link to each for the dump, and removes it when the processes continue. At the
    restore the link exists only where CRIU saves the content of the whole file system (tmpfs).
    """
    ids = set()
    for message in parse_image(remaps, REMAPS):
        fields = parse_message(message)
        if _number([Field(_REMAP_HOW, Wire.VARINT, _LINKED), *fields], _REMAP_HOW) == _LINKED:
            ids.add(_number(fields, _REMAP_FILE))
    return [file for file in open_files(files, below=b"") if file.file_id in ids]


def with_hostname(names: bytes, hostname: str) -> bytes:
    """Return `utsns-*.img` with another hostname."""
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


def with_ids(users: bytes, first: int) -> bytes:
    """Return `userns-*.img` with another first id of the host for all users and groups.

    All other images have the ids that the box sees.
    """
    messages = []
    for message in parse_image(users, USERS):
        fields = parse_message(message)
        for place, field in enumerate(fields):
            if isinstance(field.value, bytes):
                extent = [f for f in parse_message(field.value) if f.number != _LOWER_FIRST]
                extent.append(Field(_LOWER_FIRST, Wire.VARINT, first))
                fields[place] = Field(field.number, field.wire, write_message(extent))
        messages.append(write_message(fields))
    return write_image(messages, USERS)


def _changed(files: bytes, change: Callable[[list[Field]], list[Field]]) -> bytes:
    """Return `files.img` with `change` applied to the fields of each regular file."""
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
    present = {field.number for field in fields}
    return OpenFile(
        file_id=_number(fields, _REGULAR_ID),
        name=_bytes(fields, _REGULAR_NAME),
        size=_number(fields, _REGULAR_SIZE) if _REGULAR_SIZE in present else None,
        mode=_number(fields, _REGULAR_MODE) if _REGULAR_MODE in present else None,
        flags=_number(fields, _REGULAR_FLAGS),
        mount_id=_unzigzag(_number(fields, _REGULAR_MOUNT)) if _REGULAR_MOUNT in present else -1,
    )


def _is_below(name: bytes, directory: bytes) -> bool:
    return name == directory or name.startswith(directory + b"/")


def _number(fields: list[Field], number: int) -> int:
    """Return the last value of a field, as Protocol Buffers require."""
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
    """Decode a varint. Return its value and the position after it."""
    value = 0
    for count, byte in enumerate(data[place : place + _MOST_VARINT]):
        value |= (byte & 0x7F) << (7 * count)
        if byte < 0x80:
            if value >> 64:
                break
            return value, place + count + 1
    raise DamagedImage("a number is truncated or too large")


def _as_varint(value: int) -> bytes:
    parts = bytearray()
    while value >= 0x80:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def _slice(data: bytes, place: int, length: int) -> bytes:
    if place + length > len(data):
        raise DamagedImage("the image is truncated")
    return data[place : place + length]


def _zigzag(value: int) -> int:
    return value << 1 if value >= 0 else (-value << 1) - 1


def _unzigzag(value: int) -> int:
    return value >> 1 if value & 1 == 0 else -(value >> 1) - 1
