"""Parts of JSON schemas that several schemas use."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from boxd.http.description.operation import Json

TEXT: Json = {"type": "string"}
COUNT: Json = {"type": "integer", "minimum": 0}
TIME: Json = {"type": "string", "format": "date-time"}
BASE64: Json = {"type": "string", "contentEncoding": "base64"}
BYTES: Json = {"type": "string", "format": "binary"}


def record(about: str, fields: dict[str, Json], *optional: str) -> Json:
    """Return an object whose fields are all required, except the `optional` ones."""
    required = [name for name in fields if name not in optional]
    return {"type": "object", "description": about, "properties": fields, "required": required}


def or_null(schema: Json) -> Json:
    """Return the schema of a value that may also be null."""
    return {"anyOf": [schema, {"type": "null"}]}


def described(schema: Json, about: str) -> Json:
    """Return a schema with a description."""
    return {**schema, "description": about}
