"""JSON schemas that several tools use, and the two encodings of bytes in JSON."""

from __future__ import annotations

import base64
import binascii
from typing import Any, Literal

from boxd.errors import BadRequest

Encoding = Literal["utf-8", "base64"]

STRING: dict[str, Any] = {"type": "string"}
INTEGER: dict[str, Any] = {"type": "integer"}
NUMBER: dict[str, Any] = {"type": "number"}
BOOLEAN: dict[str, Any] = {"type": "boolean"}
NULLABLE_STRING: dict[str, Any] = {"type": ["string", "null"]}
ENCODING: dict[str, Any] = {"type": "string", "enum": ["utf-8", "base64"]}

BOX: dict[str, Any] = {
    "id": STRING,
    "name": STRING,
    "workspace": STRING,
    "image": STRING,
    "profile": NULLABLE_STRING,
    "state": STRING,
    "age_s": NUMBER,
    "cpus": NUMBER,
    "mem_mb": NUMBER,
    "ref": STRING,
    "attached": INTEGER,
    "why": {"type": "object", "additionalProperties": INTEGER},
    "next": {"type": ["object", "null"]},
    "removal": {"type": ["object", "null"]},
    "durable": BOOLEAN,
    "deadline": NULLABLE_STRING,
    "pinned_until": NULLABLE_STRING,
}
"""Members of a box. Later versions may add members."""
BOX_OPTIONAL = frozenset({"workspace"})

ENTRIES: dict[str, Any] = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {
            "name": STRING,
            "encoded_name": STRING,
            "is_dir": BOOLEAN,
            "size": INTEGER,
        },
        "required": ["name", "is_dir", "size"],
    },
}


def list_of(properties: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a list of objects with at least these members."""
    return {"type": "array", "items": {"type": "object", "properties": properties}}


def encode(data: bytes) -> tuple[str, Encoding]:
    """Encode bytes: as text if they are UTF-8, otherwise in base64."""
    try:
        return data.decode("utf-8"), "utf-8"
    except UnicodeDecodeError:
        return to_base64(data), "base64"


def to_base64(data: bytes) -> str:
    """Encode bytes in base64."""
    return base64.b64encode(data).decode("ascii")


def decode(text: str, encoding: str) -> bytes:
    """Decode a client's data. Raises BadRequest."""
    if encoding == "utf-8":
        return text.encode("utf-8")
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise BadRequest("data is not valid base64; encode it, or set encoding to utf-8") from None
