"""The XML of S3: writes answers, and reads the two kinds of bodies that clients send. Pure."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypeAlias
from xml.parsers import expat

from objectserver.errors import S3Error

if TYPE_CHECKING:
    from collections.abc import Iterable

NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"
MAX_DEPTH = 4
"""Maximum nesting depth of a client's document."""
MAX_ELEMENTS = 50_000
"""Maximum number of elements of a client's document."""

Value: TypeAlias = "str | int | bool | list[tuple[str, Value]]"


def render(root: str, children: Iterable[tuple[str, Value]], *, namespace: bool = True) -> bytes:
    """Return a document with the given root element and children."""
    attribute = f' xmlns="{NAMESPACE}"' if namespace else ""
    inner = "".join(_element(name, value) for name, value in children)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n<{root}{attribute}>{inner}</{root}>'.encode()


def timestamp(seconds: float) -> str:
    """Format seconds since the epoch as S3 does."""
    moment = datetime.fromtimestamp(seconds, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{moment.microsecond // 1000:03d}Z"


def parse_rows(body: bytes, row: str) -> list[dict[str, str]]:
    """Return the children of each `row` element as a mapping of name to text.

    Raises S3Error MalformedXML.
    """
    reader = _Rows(row)
    parser = expat.ParserCreate(namespace_separator=" ")
    parser.StartDoctypeDeclHandler = reader.doctype
    parser.StartElementHandler = reader.start
    parser.EndElementHandler = reader.end
    parser.CharacterDataHandler = reader.text
    try:
        parser.Parse(body, True)
    except expat.ExpatError:
        raise S3Error("MalformedXML", "the body is not well-formed XML") from None
    return reader.rows


class _Rows:
    def __init__(self, row: str) -> None:
        self.rows: list[dict[str, str]] = []
        self._row = row
        self._path: list[str] = []
        self._count = 0

    def doctype(self, *_: object) -> None:
        raise S3Error("MalformedXML", "a document type is not allowed")

    def start(self, name: str, _: dict[str, str]) -> None:
        self._path.append(name.rpartition(" ")[2])
        self._count += 1
        if len(self._path) > MAX_DEPTH or self._count > MAX_ELEMENTS:
            raise S3Error("MalformedXML", "the document is too large")
        if len(self._path) == 2 and self._path[1] == self._row:
            self.rows.append({})

    def end(self, _: str) -> None:
        self._path.pop()

    def text(self, data: str) -> None:
        if len(self._path) == 3 and self._path[1] == self._row:
            row = self.rows[-1]
            row[self._path[2]] = row.get(self._path[2], "") + data


def _element(name: str, value: Value) -> str:
    if isinstance(value, list):
        inner = "".join(_element(child, part) for child, part in value)
    elif isinstance(value, bool):
        inner = "true" if value else "false"
    else:
        inner = _escape(str(value))
    return f"<{name}>{inner}</{name}>"


def _escape(text: str) -> str:
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return text.replace('"', "&quot;").replace("'", "&apos;")
