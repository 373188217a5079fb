"""Descriptions of request bodies, from the structures that check them."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import msgspec

from boxd.http.description.operation import JSON_TYPE

if TYPE_CHECKING:
    from boxd.http.description.operation import Json


def body_of(form: type[msgspec.Struct], **example: object) -> Json:
    """Return the OpenAPI `requestBody` of a structure, with an example."""
    _, schemas = msgspec.json.schema_components([form])
    schema = cast("Json", schemas[form.__name__])
    content = {"schema": schema, "example": example}
    return {"required": bool(schema.get("required")), "content": {JSON_TYPE: content}}
