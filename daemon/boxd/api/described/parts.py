"""Parts of descriptions: what an operation is made of, in the terms of OpenAPI 3.1."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

Json: TypeAlias = dict[str, Any]
JSON_TYPE = "application/json"
NAME = "^[a-z0-9]([a-z0-9-]{0,55}[a-z0-9])?$"
"""Of boxes and workspaces."""
_NAME_IN_ANY_CASE = "^[A-Za-z0-9]([A-Za-z0-9-]{0,55}[A-Za-z0-9])?$"
REFERENCE = "^([a-z0-9]([a-z0-9-]{0,55}[a-z0-9])?/)?[a-z0-9]([a-z0-9-]{0,55}[a-z0-9])?$"
TAGS = '^("[0-9a-f]{1,16}-[0-9a-f]{1,16}"|[*])$'
"""Any, or an entity tag as they are here; lists, and others', are read, too."""

HEADER_KEYS: list[Json] = [{"bearer": []}, {"apiKey": []}]
BROWSER_KEYS: list[Json] = [*HEADER_KEYS, {"queryKey": []}]
PROXY_KEYS: list[Json] = [*BROWSER_KEYS, {"proxyCookie": []}]
NO_KEY: list[Json] = []

ERRORS: dict[int, str] = {
    400: "The request makes no sense; the text says what of it.",
    401: "No key, or none that is good; always the same bytes.",
    403: "The credential is confined to another workspace, its owner is blocked, or the box is"
    " confidential.",
    404: "Nothing of the caller's matches. What is another's is not found either.",
    405: "Not this method; `Allow` names those that work.",
    406: "The client takes none of the types that there are; the text names them.",
    409: "The present state does not allow it, or a reference matches several boxes: the text names"
    " them with their ids.",
    412: "A precondition did not hold.",
    413: "More input or output than this form carries.",
    415: "The body is of another type than the one that is taken.",
    416: "The range begins behind the end; `Content-Range` tells the size.",
    426: "This takes WebSockets alone.",
    429: "A limit of the owner; the text names it and its value.",
    500: "An internal error; the text has the id under which the log explains it.",
    502: "Nothing listens on that port of the box, or it does not speak HTTP.",
    503: "Something that is needed is out or not enabled, or no new work is taken.",
    504: "The box did not answer in time.",
    507: "The drive, or the host's disk, is full.",
}
ALWAYS = (400, 500, 503)
WITH_KEY = (401, 403)

WS: Json = {
    "name": "ws",
    "in": "query",
    "description": "The workspace that is meant, in upper or lower case; the credential's default"
    " one without it.",
    "schema": {"type": "string", "pattern": _NAME_IN_ANY_CASE},
    "example": "ws1",
}


def errors(*statuses: int, key: bool = True) -> Json:
    """Responses of failures: those that every operation has, and the ones named."""
    numbers = sorted({*ALWAYS, *statuses, *(WITH_KEY if key else ())})
    return {str(number): {"$ref": f"#/components/responses/E{number}"} for number in numbers}


def path(name: str, about: str, example: str, **schema: object) -> Json:
    """A parameter of the path; a text unless `schema` says otherwise."""
    return {
        "name": name,
        "in": "path",
        "required": True,
        "description": about,
        "schema": {"type": "string", **schema},
        "example": example,
    }


def query(name: str, about: str, **schema: object) -> Json:
    """A parameter of the query that may be left out."""
    return {"name": name, "in": "query", "description": about, "schema": schema}


def header(name: str, about: str, **schema: object) -> Json:
    """A header of the request that may be left out."""
    return {"name": name, "in": "header", "description": about, "schema": schema}


def tags(name: str, about: str) -> Json:
    """A header of the request with entity tags."""
    return {**header(name, about, type="string", pattern=TAGS), "example": '"2a-1"'}


def answer(about: str, schema: Json | None = None, example: object = None, **more: object) -> Json:
    """A response with JSON; without a schema one that has no body."""
    if schema is None:
        return {"description": about, **more}
    content: Json = {"schema": schema}
    if example is not None:
        content["example"] = example
    return {"description": about, "content": {JSON_TYPE: content}, **more}


def ref(name: str) -> Json:
    """A schema of the document by its name."""
    return {"$ref": f"#/components/schemas/{name}"}


def array(name: str) -> Json:
    """A list of such."""
    return {"type": "array", "items": ref(name)}


def operation(
    name: str,
    family: str,
    summary: str,
    about: str,
    responses: Mapping[str, object],
    *parameters: Json,
    body: Json | None = None,
    security: list[Json] | None = None,
) -> Json:
    """One operation. `name` is its id; `security` None: a key in a header."""
    made: Json = {
        "operationId": name,
        "tags": [family],
        "summary": summary,
        "description": about,
        "security": HEADER_KEYS if security is None else security,
        "responses": dict(sorted(responses.items())),
    }
    if parameters:
        made["parameters"] = list(parameters)
    if body is not None:
        made["requestBody"] = body
    return made
