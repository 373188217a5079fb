"""The description of one operation of the HTTP API, in the terms of OpenAPI 3.1.

Every route has an `Operation`. The OpenAPI document and the page `/docs` are generated from them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

Json: TypeAlias = dict[str, Any]
JSON_TYPE = "application/json"
NAME = "^[a-z0-9]([a-z0-9-]{0,55}[a-z0-9])?$"
"""Pattern of the names of boxes and workspaces."""
_NAME_IN_ANY_CASE = "^[A-Za-z0-9]([A-Za-z0-9-]{0,55}[A-Za-z0-9])?$"
REFERENCE = "^([a-z0-9]([a-z0-9-]{0,55}[a-z0-9])?/)?[a-z0-9]([a-z0-9-]{0,55}[a-z0-9])?$"
"""Pattern of a box reference: `name` or `workspace/name`."""
VARIABLE = "^[A-Za-z_][A-Za-z0-9_]*$"
"""Pattern of the name of an environment variable."""
TAGS = '^("[0-9a-f]{1,16}-[0-9a-f]{1,16}"|[*])$'
"""Pattern of `*`, or of one entity tag of this service. The service also reads lists of tags, and
tags in other forms."""

HEADER_KEYS: list[Json] = [{"bearer": []}, {"apiKey": []}]
BROWSER_KEYS: list[Json] = [*HEADER_KEYS, {"queryKey": []}]
PROXY_KEYS: list[Json] = [*BROWSER_KEYS, {"proxyCookie": []}]
NO_KEY: list[Json] = []

ERRORS: dict[int, str] = {
    400: "The request is malformed; the text names the part that is wrong.",
    401: "The key is missing or not valid. The response is always the same bytes.",
    403: "The credential is confined to another workspace, its owner is blocked, or the box is"
    " confidential.",
    404: "Nothing that the caller owns matches. Objects of other owners are not found either.",
    405: "The path does not support this method; `Allow` lists the methods that it supports.",
    406: "The client accepts none of the available types; the text lists them.",
    409: "The current state does not allow it, or a reference matches several boxes: the text lists"
    " them with their ids.",
    412: "A precondition failed.",
    413: "The input or output is larger than this form of the request allows.",
    415: "The type of the body is not supported.",
    416: "The range begins after the end of the file; `Content-Range` states the size.",
    421: "MCP is not served at this `Host`; the text names the flag that adds it.",
    426: "This path accepts only WebSockets.",
    429: "A limit of the owner is reached; the text names the limit and its value.",
    500: "An internal error; the text has an id, and the log has the cause under this id.",
    502: "Nothing listens on that port of the box, or the listener does not speak HTTP.",
    503: "A dependency is unavailable or not enabled, or the service is not accepting new work.",
    504: "The box did not answer in time.",
    507: "The drive, or the host's disk, is full.",
}
"""The error statuses of the API, each with its meaning."""
_ALWAYS = (400, 500, 503)
_WITH_KEY = (401, 403)

WS: Json = {
    "name": "ws",
    "in": "query",
    "description": "The workspace, in upper or lower case. Without it the credential's default"
    " workspace applies.",
    "schema": {"type": "string", "pattern": _NAME_IN_ANY_CASE},
    "example": "ws1",
}


@dataclass(frozen=True, slots=True)
class Operation:
    """The description of one method of one path."""

    id: str
    """The `operationId`; unique in the document."""
    family: str
    """The tag under which the document lists it; one of `document.FAMILIES`."""
    summary: str
    about: str
    responses: Mapping[str, object]
    """Responses by status, as OpenAPI has them."""
    parameters: tuple[Json, ...] = ()
    body: Json | None = None
    """The `requestBody`, or None for an operation that reads no body."""
    security: tuple[Json, ...] | list[Json] = tuple(HEADER_KEYS)
    """The ways to present a credential; by default a key in a header. Empty: needs no key."""

    def to_json(self) -> Json:
        """Return the operation as an OpenAPI Operation Object."""
        description: Json = {
            "operationId": self.id,
            "tags": [self.family],
            "summary": self.summary,
            "description": self.about,
            "security": list(self.security),
            "responses": dict(sorted(self.responses.items())),
        }
        if self.parameters:
            description["parameters"] = list(self.parameters)
        if self.body is not None:
            description["requestBody"] = self.body
        return description


def errors(*statuses: int, key: bool = True) -> Json:
    """Return the error responses of an operation: those of every operation, and `statuses`.

    `key`: the operation needs a key, so that it can also answer 401 and 403.
    """
    numbers = sorted({*_ALWAYS, *statuses, *(_WITH_KEY if key else ())})
    return {str(number): {"$ref": f"#/components/responses/E{number}"} for number in numbers}


def path(name: str, about: str, example: str, **schema: object) -> Json:
    """Return a path parameter; a string unless `schema` says otherwise."""
    return {
        "name": name,
        "in": "path",
        "required": True,
        "description": about,
        "schema": {"type": "string", **schema},
        "example": example,
    }


def query(name: str, about: str, **schema: object) -> Json:
    """Return an optional query parameter."""
    return {"name": name, "in": "query", "description": about, "schema": schema}


def switch(name: str, about: str) -> Json:
    """Return an optional query parameter that is `true` or `false`."""
    return query(name, about, type="string", enum=["true", "false"])


def header(name: str, about: str, **schema: object) -> Json:
    """Return an optional request header."""
    return {"name": name, "in": "header", "description": about, "schema": schema}


def tags(name: str, about: str) -> Json:
    """Return an optional request header that carries entity tags."""
    return {**header(name, about, type="string", pattern=TAGS), "example": '"2a-1"'}


def answer(about: str, schema: Json | None = None, example: object = None, **more: object) -> Json:
    """Return a response with a JSON body of `schema`; None: a response without a body."""
    if schema is None:
        return {"description": about, **more}
    content: Json = {"schema": schema}
    if example is not None:
        content["example"] = example
    return {"description": about, "content": {JSON_TYPE: content}, **more}


def ref(name: str) -> Json:
    """Return a reference to a schema of the document."""
    return {"$ref": f"#/components/schemas/{name}"}


def array(name: str) -> Json:
    """Return the schema of a list whose values have a schema of the document."""
    return {"type": "array", "items": ref(name)}
