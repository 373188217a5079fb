"""Images in layers, as `docker save` and the OCI layout write them: which archives, in which order.

Looks at the root of this process, into which the image's own archive was unpacked.
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
"""Stands before the name of what a layer removes."""
OPAQUE = ".wh..wh..opq"
"""In a directory of which a layer keeps nothing."""
MAX_LAYERS = 256
MAX_DOCUMENT = 4 << 20
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_ARCHITECTURE = _ARCHITECTURES.get(platform.machine(), platform.machine())
_INDEX_KINDS = ("image.index", "manifest.list")


class Unreadable(Exception):
    """It says that it is an image, and is not right."""


@dataclass(frozen=True, slots=True)
class Layers:
    """The open archives of an image, from the bottom. `kind` is the form, for people."""

    kind: str
    files: list[io.BufferedReader]


def find() -> Layers | None:
    """The layers of the image at the root; None when it is no image in layers. Unreadable."""
    try:
        if os.path.exists("/oci-layout") and os.path.exists("/index.json"):
            manifest = _manifest(_document("/index.json"), depth=0)
            wanted = [_blob(layer) for layer in _list(manifest, "layers")]
            return Layers("an OCI layout", _opened(wanted))
        if os.path.exists("/manifest.json") and not os.path.exists("/etc"):
            images = _read("/manifest.json")
            if not isinstance(images, list) or len(images) != 1:
                raise Unreadable("it must hold one image: save a single one")
            return Layers("docker save", _opened([f"/{p}" for p in _list(images[0], "Layers")]))
    except (KeyError, TypeError, AttributeError) as error:
        raise Unreadable(f"the image's description is not right: {error!r}") from None
    return None


def _manifest(index: dict[str, Any], *, depth: int) -> dict[str, Any]:
    """The manifest for this machine that an index leads to."""
    fitting = [one for one in _list(index, "manifests") if _fits(one)]
    if not fitting:
        raise Unreadable(f"it holds no image for linux/{_ARCHITECTURE}")
    if len({one["digest"] for one in fitting}) > 1:
        raise Unreadable("it must hold one image: save a single one")
    found = _document(_blob(fitting[0]), checked=True)
    if any(kind in fitting[0].get("mediaType", "") for kind in _INDEX_KINDS):
        if depth > 1:
            raise Unreadable("its index leads to too many others")
        return _manifest(found, depth=depth + 1)
    return found


def _fits(entry: dict[str, Any]) -> bool:
    asked = entry.get("platform") or {"os": "linux", "architecture": _ARCHITECTURE}
    return (asked.get("os"), asked.get("architecture")) == ("linux", _ARCHITECTURE)


def _blob(entry: dict[str, Any]) -> str:
    algorithm, _, digest = entry["digest"].partition(":")
    if algorithm != "sha256" or len(digest) != 64 or not digest.isalnum():
        raise Unreadable(f"it names a part by {entry['digest']!r}, which is not read here")
    return f"/blobs/sha256/{digest}"


def _list(document: dict[str, Any], key: str) -> list[Any]:
    found = document[key]
    if not isinstance(found, list) or len(found) > MAX_LAYERS:
        raise Unreadable(f"{key!r} in its description must be a list of at most {MAX_LAYERS}")
    return found


def _document(path: str, *, checked: bool = False) -> dict[str, Any]:
    found = _read(path, checked=checked)
    if not isinstance(found, dict):
        raise Unreadable(f"{path} in it is no description")
    return found


def _read(path: str, *, checked: bool = False) -> object:
    with _open(path, checked=checked) as file:
        text = file.read(MAX_DOCUMENT + 1)
    if len(text) > MAX_DOCUMENT:
        raise Unreadable(f"{path} in it is too long for a description")
    try:
        found: object = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"{path} in it is not JSON: {error}") from None
    return found


def _opened(paths: list[str]) -> list[io.BufferedReader]:
    return [_open(path, checked=path.startswith("/blobs/sha256/")) for path in paths]


def _open(path: str, *, checked: bool) -> io.BufferedReader:
    """A file of the image. `checked`: its name is the sum of its content."""
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
            raise Unreadable(f"{path} in it is damaged: its sum is another one")
        file.seek(0)
    return file
