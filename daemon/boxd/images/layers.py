"""Finds the layers of an image in the formats of `docker save` and of the OCI layout.

Reads the root of this process, into which the archive of the image was unpacked.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import io

MARK = ".wh."
"""Prefix of a name that a layer removes."""
OPAQUE = ".wh..wh..opq"
"""Name in a directory whose lower content a layer removes completely."""
MAX_LAYERS = 256
MAX_DOCUMENT = 4 << 20
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_ARCHITECTURE = _ARCHITECTURES.get(platform.machine(), platform.machine())
_INDEX_KINDS = ("image.index", "manifest.list")


class Unreadable(Exception):
    """The archive looks like an image, but has an error."""


@dataclass(frozen=True, slots=True)
class Layers:
    """The open archives of an image, the lowest layer first. `kind` is the format, for users."""

    kind: str
    files: list[io.BufferedReader]


def find() -> Layers | None:
    """Return the layers of the image at the root; None if it has none. Raises Unreadable."""
    try:
        if os.path.exists("/oci-layout") and os.path.exists("/index.json"):
            manifest = _manifest(_document("/index.json"), depth=0)
            blobs = [_blob(layer) for layer in _list(manifest, "layers")]
            return Layers("an OCI layout", _open_all(blobs))
        if os.path.exists("/manifest.json") and not os.path.exists("/etc"):
            images = _read("/manifest.json")
            if not isinstance(images, list) or len(images) != 1:
                raise Unreadable("it must contain exactly one image: save a single one")
            return Layers("docker save", _open_all([f"/{p}" for p in _list(images[0], "Layers")]))
    except (KeyError, TypeError, AttributeError) as error:
        raise Unreadable(f"the description of the image is malformed: {error!r}") from None
    return None


def _manifest(index: dict[str, Any], *, depth: int) -> dict[str, Any]:
    """Return the manifest of an index for this machine."""
    matches = [entry for entry in _list(index, "manifests") if _matches_machine(entry)]
    if not matches:
        raise Unreadable(f"it contains no image for linux/{_ARCHITECTURE}")
    if len({entry["digest"] for entry in matches}) > 1:
        raise Unreadable("it must contain exactly one image: save a single one")
    document = _document(_blob(matches[0]), checked=True)
    if any(kind in matches[0].get("mediaType", "") for kind in _INDEX_KINDS):
        if depth > 1:
            raise Unreadable("its indexes are nested too deep")
        return _manifest(document, depth=depth + 1)
    return document


def _matches_machine(entry: dict[str, Any]) -> bool:
    target = entry.get("platform") or {"os": "linux", "architecture": _ARCHITECTURE}
    return (target.get("os"), target.get("architecture")) == ("linux", _ARCHITECTURE)


def _blob(entry: dict[str, Any]) -> str:
    algorithm, _, digest = entry["digest"].partition(":")
    if algorithm != "sha256" or len(digest) != 64 or not digest.isalnum():
        raise Unreadable(f"its digest {entry['digest']!r} is not a SHA-256 digest")
    return f"/blobs/sha256/{digest}"


def _list(document: dict[str, Any], key: str) -> list[Any]:
    entries = document[key]
    if not isinstance(entries, list) or len(entries) > MAX_LAYERS:
        raise Unreadable(
            f"{key!r} in its description must be a list of at most {MAX_LAYERS} entries"
        )
    return entries


def _document(path: str, *, checked: bool = False) -> dict[str, Any]:
    document = _read(path, checked=checked)
    if not isinstance(document, dict):
        raise Unreadable(f"{path} in it is not a JSON object")
    return document


def _read(path: str, *, checked: bool = False) -> object:
    with _open(path, checked=checked) as file:
        text = file.read(MAX_DOCUMENT + 1)
    if len(text) > MAX_DOCUMENT:
        raise Unreadable(f"{path} in it is larger than {MAX_DOCUMENT >> 20} MiB")
    try:
        content: object = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"{path} in it is not JSON: {error}") from None
    return content


def _open_all(paths: list[str]) -> list[io.BufferedReader]:
    return [_open(path, checked=path.startswith("/blobs/sha256/")) for path in paths]


def _open(path: str, *, checked: bool) -> io.BufferedReader:
    """Open a file of the image. With `checked`, its name must be the SHA-256 sum of its content."""
    try:
        file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb")
    except OSError as error:
        raise Unreadable(f"{path} in it cannot be read: {error.strerror}") from None
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise Unreadable(f"{path} in it is not a file")
    if checked:
        digest = hashlib.sha256()
        while chunk := file.read(1 << 20):
            digest.update(chunk)
        if digest.hexdigest() != path.rpartition("/")[2]:
            file.close()
            raise Unreadable(f"{path} in it is damaged: its checksum is wrong")
        file.seek(0)
    return file
