"""The document of the HTTP API: it is OpenAPI 3.1, about everything that is served, and true."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, cast

import jsonschema_rs
import pytest

from boxd.config import Config
from boxd.errors import BoxdError
from boxd.http.app import Api
from boxd.http.description.schemas import SCHEMAS
from boxd.http.openapi.document import document, operations_of
from boxd.http.routes.table import JSON_ROUTES
from boxd.mcp.messages import parked
from boxd.mcp.sessions import http_session
from boxd.model.usage import Usage
from tests.harness.simulation.world import ALICE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from boxd.http.routes.mcp import McpService
    from tests.harness.simulation.world import World

DOCUMENT = document()
OPERATIONS = [
    (path, verb, one) for path, item in DOCUMENT["paths"].items() for verb, one in item.items()
]


def references(value: object) -> Iterator[str]:
    """All `$ref` below a value."""
    if isinstance(value, dict):
        if "$ref" in value:
            yield value["$ref"]
        for inner in value.values():
            yield from references(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from references(inner)


def schema(name: str) -> dict[str, Any]:
    """A schema by its name, with what it refers to."""
    return {"$ref": f"#/components/schemas/{name}", "components": DOCUMENT["components"]}


def check(value: object, wanted: dict[str, Any]) -> None:
    """Raises when a value is not what a schema says."""
    jsonschema_rs.Draft202012Validator(wanted).validate(value)


def test_every_route_is_described_and_everything_described_is_served(world: World) -> None:
    config = Config(api_origins=("https://app.example.com",))
    served = operations_of(Api(world.operations, config, cast("McpService", object())).routes)
    assert {(path, verb) for path, verb, _ in OPERATIONS} == served


def test_what_is_not_served_is_not_in_the_document_that_is(world: World) -> None:
    shown = document(Api(world.operations).routes)["paths"]
    assert "/v1/boxes" in shown
    assert "/v1/mcp" not in shown
    shown = document(Api(world.operations, mcp_service=cast("McpService", object())).routes)[
        "paths"
    ]
    assert set(shown["/v1/mcp"]) == {"get", "post", "delete"}


def test_resuming_of_mcp_is_described() -> None:
    path = DOCUMENT["paths"]["/v1/mcp"]
    assert "Last-Event-ID" in {one["name"] for one in path["get"]["parameters"]}
    assert f"{http_session.ANSWER_S / 60:.0f} minutes" in path["get"]["description"]
    assert f"{http_session.MAX_ANSWERS} answers of a session" in path["get"]["description"]
    assert f"{parked.MAX_BYTES >> 20} MiB of an owner" in path["get"]["description"]
    assert http_session.RESUME_S == http_session.ANSWER_S
    assert {"id", "retry"} <= DOCUMENT["components"]["schemas"]["Event"]["properties"].keys()
    assert all("421" in path[verb]["responses"] for verb in ("get", "post", "delete"))


def test_no_path_is_described_twice() -> None:
    described = [(route.path, route.method) for route in JSON_ROUTES]
    assert len(described) == len(set(described))
    names = [one["operationId"] for _, _, one in OPERATIONS]
    assert len(names) == len(set(names))


def test_every_reference_leads_somewhere() -> None:
    for reference in references(DOCUMENT):
        found: Any = DOCUMENT
        for name in reference.removeprefix("#/").split("/"):
            found = found[name]
        assert found


@pytest.mark.parametrize(("path", "verb", "one"), OPERATIONS)
def test_an_operation_is_whole(path: str, verb: str, one: dict[str, Any]) -> None:
    wanted = set(re.findall(r"\{(\w+)\}", path))
    told = one.get("parameters", [])
    assert {found["name"] for found in told if found["in"] == "path"} == wanted
    assert one["summary"]
    assert one["description"]
    statuses = set(one["responses"])
    assert {"400", "500", "503"} <= statuses
    head = verb == "head" and path.endswith("/term")  # a WebSocket is never asked for by it
    assert head or any(status < "400" or status == "default" for status in statuses)
    assert ("401" in statuses) == bool(one["security"])
    for way in one["security"]:
        assert way.keys() <= DOCUMENT["components"]["securitySchemes"].keys()
    for status in statuses:
        if "400" <= status < "600" and (path, status) != (
            "/v1/mcp",
            "400",
        ):  # or as JSON-RPC has it
            assert one["responses"][status] == {"$ref": f"#/components/responses/E{status}"}


def test_every_error_of_the_service_has_its_status() -> None:
    kinds, known = [BoxdError], set()
    while kinds:
        kind = kinds.pop()
        known.add(kind.http_status)
        kinds += kind.__subclasses__()
    described = {int(name[1:]) for name in DOCUMENT["components"]["responses"]}
    assert known <= described


@pytest.mark.parametrize("name", SCHEMAS)
def test_schemas_are_schemas(name: str) -> None:
    assert jsonschema_rs.meta.is_valid(SCHEMAS[name])


def test_examples_are_what_their_schemas_say() -> None:
    seen = 0
    for path, _, one in OPERATIONS:
        for response in one["responses"].values():
            for kind, content in response.get("content", {}).items():
                if kind == "application/json" and "example" in content:
                    whole = {**content["schema"], "components": DOCUMENT["components"]}
                    check(content["example"], whole)
                    seen += 1
        if path == "/v1/exec/{spec}":
            body = one["requestBody"]["content"]["application/x-svc-exec"]["example"]
            check(json.loads(body.split("\n")[0]), schema("ExecHeader"))
    assert seen > 5


async def test_boxes_are_what_their_schema_says(world: World) -> None:
    view = await world.operations.boxes.up(ALICE, "ws1/web")
    shown = view.to_json()
    check(shown, schema("Box"))
    assert shown.keys() == SCHEMAS["Box"]["properties"].keys()
    usage = Usage(world.clock.now(), 1.0, None, 1, 1, 1, 1, 1)
    assert usage.to_json().keys() == SCHEMAS["Usage"]["properties"].keys()
