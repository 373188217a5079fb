"""The JSON routes, authentication and the shell of the HTTP API, on a real server."""

from __future__ import annotations

import asyncio
import json
import logging
import logging.handlers
import re
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from boxd.http.routes.route import Route
from tests.harness.http.errors import error_of
from tests.harness.http.web import ALICE, BOB

if TYPE_CHECKING:
    from tests.harness.http.web import Web

INVALID = '{"error": "invalid API key"}'


async def make_box(web: Web, spec: str) -> str:
    """A running box of the first owner; its id."""
    return (await web.operations.boxes.up(ALICE, spec)).id


async def test_health_needs_no_key(web: Web) -> None:
    response = await web.client(key="").get("/healthz")
    assert (response.status_code, response.json()) == (200, {"ok": True})


async def test_every_answer_has_the_common_headers(web: Web) -> None:
    client = web.client()
    for path in ("/healthz", "/v1/boxes", "/nowhere", "/v1/wrk/absent"):
        headers = (await client.get(path)).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"
        assert headers["referrer-policy"] == "no-referrer"
        assert "date" in headers
        assert "server" not in headers


async def test_documentation_pages_of_the_framework_are_off(web: Web) -> None:
    for path in ("/redoc", "/openapi.json", "/docs/oauth2-redirect"):
        assert (await web.client().get(path)).status_code == 404


async def test_public_routes_and_routes_for_sockets_are_these(web: Web) -> None:
    """The authorisation matrix lists all routes; these two kinds need a second look."""
    public = {route.path for route in web.api.routes if route.public}
    assert public == {"/healthz", "/docs", "/v1/openapi.json", "/v1/tls-ask"}
    sockets = {route for route in web.api.routes if route.socket}
    assert sockets == {
        Route("/v1/boxes/{box}/term", ("GET", "HEAD"), socket=True),
        Route("/v1/boxes/{box}/proxy/{port}/{path...}", (), socket=True),
        Route("/v1/mcp", ("GET", "POST", "DELETE"), socket=True),
    }


async def test_every_route_but_the_public_ones_needs_a_key(web: Web) -> None:
    client = web.client(key="")
    del client.headers["authorization"]
    for route in web.api.routes:
        path = re.sub(r"\{\w+\}", "x", route.path)
        for method in route.methods:
            response = await client.request(method, path)
            assert (response.status_code == 401) is not route.public, (method, path)
            if method != "HEAD" and not route.public:
                assert response.text == INVALID


async def test_keys_that_are_no_good_get_the_same_answer(web: Web) -> None:
    expired = await web.new_key(ttl=timedelta(microseconds=1), name="expired")
    revoked = await web.new_key(name="revoked")
    await web.operations.keys.remove_key(ALICE, "revoked")
    shown = [
        {},
        {"authorization": ""},
        {"authorization": "Bearer"},
        {"authorization": f"Basic {web.key}"},
        {"authorization": web.key},
        {"authorization": f"Bearer {web.key}x"},
        {"authorization": f"Bearer {web.key.upper()}"},
        {"authorization": "Bearer svc_" + "0" * 40},
        {"authorization": f"Bearer {'x' * 5000}"},
        {"authorization": f"Bearer {expired}"},
        {"authorization": f"Bearer {revoked}"},
        {"x-api-key": ""},
        {"x-api-key": revoked},
        {"x-api-key": f"Bearer {web.key}"},
        {"authorization": "Bearer nonsense", "x-api-key": web.key},
        {"cookie": f"svc_proxy={web.key}"},
    ]
    answers = set()
    client = web.client()
    del client.headers["authorization"]
    for headers in shown:
        response = await client.get("/v1/boxes", headers=headers)
        own = ("date", "x-request-id")
        kept = [(k, v) for k, v in response.headers.multi_items() if k not in own]
        answers.add((response.status_code, response.content, tuple(kept)))
    assert len(answers) == 1
    status, body, headers_seen = answers.pop()
    assert (status, body.decode()) == (401, INVALID)
    assert ("www-authenticate", "Bearer") in headers_seen


async def test_keys_of_who_is_blocked_are_refused_everywhere(web: Web) -> None:
    client = web.client()
    await web.operations.callers.access_policy.block(ALICE.owner)
    for method, path in (("GET", "/v1/boxes"), ("GET", "/v1/wrk/"), ("POST", "/v1/exec/web")):
        refused = await client.request(method, path, content="true")
        assert refused.status_code == 403
        assert refused.json() == {
            "error": "this account is blocked: ask the operator of this service"
        }
    assert await web.store.all_boxes() == []
    assert (await web.client(await web.new_key(BOB)).get("/v1/boxes")).status_code == 200
    assert (await web.client("svc_" + "0" * 40).get("/v1/boxes")).status_code == 401


async def test_drained_it_takes_no_commands(web: Web) -> None:
    client = web.client()
    web.operations.callers.access_policy.draining = True
    plain = {"content-type": "text/plain"}
    refused = await client.post("/v1/exec/web?stream=false", content="true", headers=plain)
    assert refused.status_code == 503
    assert "no new work" in refused.json()["error"]
    assert (await client.get("/v1/boxes")).json() == []


async def test_a_key_in_the_query_is_not_read(web: Web) -> None:
    client = web.client()
    del client.headers["authorization"]
    assert (await client.get(f"/v1/boxes?key={web.key}")).text == INVALID


async def test_both_ways_to_show_a_key(web: Web) -> None:
    client = web.client()
    del client.headers["authorization"]
    for headers in (
        {"authorization": f"Bearer {web.key}"},
        {"authorization": f"bearer   {web.key}"},
        {"x-api-key": web.key},
        {"authorization": f"Bearer {web.key}", "x-api-key": "nonsense"},
    ):
        assert (await client.get("/v1/boxes", headers=headers)).status_code == 200


async def test_boxes_are_listed_with_the_fields_of_the_specification(web: Web) -> None:
    box_id = await make_box(web, "web")
    other_id = await make_box(web, "ws1/api")
    boxes = (await web.client().get("/v1/boxes")).json()
    assert {box["id"] for box in boxes} == {box_id, other_id}
    by_name = {box["name"]: box for box in boxes}
    assert "workspace" not in by_name["web"]
    assert by_name["api"]["workspace"] == "ws1"
    for box in boxes:
        assert box["image"] == "debian"
        assert box["state"] == "running"
        assert box["age_s"] >= 0
        assert (box["cpus"], box["mem_mb"]) == (1.0, 512)
    only = (await web.client().get("/v1/boxes?ws=ws1")).json()
    assert [box["id"] for box in only] == [other_id]


async def test_foreign_boxes_are_neither_listed_nor_found(web: Web) -> None:
    box_id = await make_box(web, "web")
    stranger = web.client(await web.new_key(BOB))
    assert (await stranger.get("/v1/boxes")).json() == []
    foreign = await stranger.delete(f"/v1/boxes/{box_id}")
    random = await stranger.delete(f"/v1/boxes/{'0' * 32}")
    assert foreign.status_code == random.status_code == 404
    assert error_of(foreign).replace(box_id, "ID") == error_of(random).replace("0" * 32, "ID")
    assert len((await web.client().get("/v1/boxes")).json()) == 1


@pytest.mark.parametrize("form", ["web", "{id}", "{id8}", "WEB"])
async def test_a_box_is_removed_by_any_reference(web: Web, form: str) -> None:
    box_id = await make_box(web, "web")
    ref = form.format(id=box_id, id8=box_id[:8])
    response = await web.client().delete(f"/v1/boxes/{ref}")
    assert (response.status_code, response.content) == (204, b"")
    assert (await web.client().get("/v1/boxes")).json() == []


async def test_a_pinned_box_is_removed_only_with_force(web: Web) -> None:
    await make_box(web, "web")
    await web.operations.boxes.pin(ALICE, "web", span=timedelta(hours=2), why="nightly build")
    client = web.client()
    for request in ("DELETE /v1/boxes/web", "DELETE /v1/boxes/web?force=false"):
        method, path = request.split()
        refused = await client.request(method, path)
        assert refused.status_code == 409
        text = error_of(refused)
        assert text.startswith("box web is pinned until ")
        assert text.endswith(
            " UTC (nightly build). Add ?force=true to remove it, or unpin it first"
        )
    fresh = await client.post(
        "/v1/exec/web+", content=b"true", headers={"content-type": "text/plain"}
    )
    assert (fresh.status_code, "unpin web" in error_of(fresh)) == (409, True)
    assert len((await client.get("/v1/boxes")).json()) == 1
    assert (await client.delete("/v1/boxes/web?force=true")).status_code == 204
    assert (await client.get("/v1/boxes")).json() == []


async def test_a_box_is_kept_and_given_back(web: Web) -> None:
    await make_box(web, "web")
    client = web.client()
    (box,) = (await client.get("/v1/boxes")).json()
    assert (box["durable"], box["removal"]["why"]) == (False, "unused")
    for _ in range(2):
        response = await client.post("/v1/boxes/web/keep")
        box = response.json()
        assert (response.status_code, box["durable"], box["removal"]) == (200, True, None)
    response = await client.post("/v1/boxes/web/keep?off=true")
    box = response.json()
    assert (response.status_code, box["durable"], box["removal"]["why"]) == (200, False, "unused")
    assert (await client.get("/v1/boxes")).json()[0]["removal"] is not None
    refused = await client.post("/v1/boxes/web/keep?off=maybe")
    assert (refused.status_code, "off" in error_of(refused)) == (400, True)
    assert (await client.post("/v1/boxes/nothing/keep")).status_code == 404


async def test_exec_creates_a_durable_box_without_a_default_deadline(web: Web) -> None:
    client, plain = web.client(), {"content-type": "text/plain"}
    boxes: dict[str, dict[str, object]] = {}
    for spec, durable in (("job", False), ("job!", True), ("kept!", True), ("kept%21", True)):
        response = await client.post(f"/v1/exec/{spec}", content=b"true", headers=plain)
        assert response.status_code == 200, response.text
        name = spec.removesuffix("!").removesuffix("%21")
        boxes = {box["name"]: box for box in (await client.get("/v1/boxes")).json()}
        assert (boxes[name]["durable"]) is durable
    assert boxes["job"]["deadline"] is not None  # a deadline that exists is not taken away
    assert boxes["kept"]["deadline"] is None
    for spec, text in (("kept!!", "'!' occurs twice"), ("_!", "throwaway box cannot be durable")):
        refused = await client.post(f"/v1/exec/{spec}", content=b"true", headers=plain)
        assert (refused.status_code, text in error_of(refused)) == (400, True)


@pytest.mark.parametrize("path", ["api?ws=ws1", "ws1%2Fapi", "ws1%2fapi?ws=ws1"])
async def test_a_box_of_a_workspace_is_removed(web: Web, path: str) -> None:
    await make_box(web, "ws1/api")
    assert (await web.client().delete("/v1/boxes/api")).status_code == 404
    assert (await web.client().delete(f"/v1/boxes/{path}")).status_code == 204


async def test_an_ambiguous_reference_names_the_candidates(web: Web) -> None:
    box_id = await make_box(web, "web")
    twin = await make_box(web, box_id[:6])
    response = await web.client().delete(f"/v1/boxes/{box_id[:6]}")
    assert response.status_code == 409
    assert box_id in error_of(response)
    assert twin in error_of(response)
    assert len((await web.client().get("/v1/boxes")).json()) == 2


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/v1/boxes/web", 404),
        ("/v1/boxes/we_b", 400),
        ("/v1/boxes/%ff", 400),
        ("/v1/boxes/web?ws=NO_GOOD", 400),
        ("/v1/boxes/web?ws=", 400),
        ("/v1/boxes/web?force=1", 400),
        ("/v1/boxes/web?force=true&force=false", 400),
        ("/v1/boxes/web?ws=a&ws=b", 400),
        ("/v1/boxes/a%2Fweb?ws=b", 400),
        ("/v1/boxes/a/web", 404),
        ("/v1/boxes/", 404),
    ],
)
async def test_references_that_find_nothing(web: Web, path: str, status: int) -> None:
    response = await web.client().delete(path)
    assert response.status_code == status
    assert error_of(response)


@pytest.mark.parametrize("verb", ["suspend", "resume"])
async def test_suspend_and_resume_answer_400_while_the_backend_cannot(web: Web, verb: str) -> None:
    await make_box(web, "web")
    client = web.client()
    response = await client.post(f"/v1/boxes/web/{verb}")
    assert response.status_code == 400
    assert "boxes are plain processes" in error_of(response)
    assert (await client.post(f"/v1/boxes/absent/{verb}")).status_code == 404
    scoped = web.client(await web.new_key(scope="ws1"))
    assert (await scoped.post(f"/v1/boxes/web/{verb}?ws=ws2")).status_code == 403


@pytest.mark.parametrize("verb", ["suspend", "resume"])
async def test_suspend_and_resume_find_the_box_first(web: Web, verb: str) -> None:
    box_id = await make_box(web, "ws1/web")
    twin = await make_box(web, box_id[:6])
    client = web.client()
    ambiguous = await client.post(f"/v1/boxes/{box_id[:6]}/{verb}")
    assert ambiguous.status_code == 409
    assert box_id in error_of(ambiguous)
    assert twin in error_of(ambiguous)
    # 400: found, and the backend cannot.
    for ref in (box_id, box_id[:7], "web?ws=ws1", "ws1%2Fweb", "WS1%2fWEB?ws=ws1"):
        path, _, query = ref.partition("?")
        answer = await client.post(f"/v1/boxes/{path}/{verb}?{query}")
        assert (answer.status_code, "processes" in error_of(answer)) == (400, True), ref
    for ref, status in (
        ("web", 404),
        ("web?ws=NO_GOOD", 400),
        ("we_b", 400),
        ("ws1%2Fweb?ws=x", 400),
    ):
        path, _, query = ref.partition("?")
        assert (await client.post(f"/v1/boxes/{path}/{verb}?{query}")).status_code == status, ref
    stranger = web.client(await web.new_key(BOB))
    assert (await stranger.post(f"/v1/boxes/{box_id}/{verb}")).status_code == 404
    assert len(await web.operations.boxes.list_boxes(ALICE, everywhere=True)) == 2


async def test_catalogs(web: Web) -> None:
    client = web.client()
    images = (await client.get("/v1/images")).json()
    assert images == [{"name": "debian", "description": "this machine", "built": True}]
    flavors = (await client.get("/v1/flavors")).json()
    assert flavors[0] == {"name": "small", "description": "for tests", "cpus": 1.0, "mem_mb": 512}


async def test_a_scoped_key_sees_its_workspace_only(web: Web) -> None:
    await make_box(web, "web")
    outside = await make_box(web, "ws2/db")
    await make_box(web, "ws1/api")
    client = web.client(await web.new_key(scope="ws1"))
    assert [box["name"] for box in (await client.get("/v1/boxes")).json()] == ["api"]
    for path in ("/v1/boxes?ws=ws2", "/v1/wrk/?ws=ws2"):
        response = await client.get(path)
        assert response.status_code == 403
        assert "ws1" in error_of(response)
    assert (await client.delete("/v1/boxes/db?ws=ws2")).status_code == 403
    assert (await client.delete("/v1/boxes/ws2%2Fdb")).status_code == 403
    assert (await client.delete("/v1/boxes/web")).status_code == 404
    assert (await client.delete(f"/v1/boxes/{outside}")).status_code == 404
    assert (await client.delete("/v1/boxes/api")).status_code == 204
    assert len((await web.client().get("/v1/boxes")).json()) == 2


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("POST", "/healthz", "GET, HEAD"),
        ("PUT", "/v1/boxes", "GET, HEAD, POST"),
        ("POST", "/v1/boxes/web", "DELETE, GET, HEAD"),
        ("GET", "/v1/boxes/web/suspend", "POST"),
        ("GET", "/v1/exec/web", "POST"),
        ("POST", "/v1/wrk/a", "GET, HEAD, PUT, DELETE"),
        ("OPTIONS", "/v1/wrk/a", "GET, HEAD, PUT, DELETE"),
        ("PROPFIND", "/v1/wrk/a", "GET, HEAD, PUT, DELETE"),
        ("TRACE", "/v1/boxes", "GET, HEAD, POST, PUT, DELETE"),
    ],
)
async def test_other_methods_are_refused_with_those_that_work(
    web: Web, method: str, path: str, allowed: str
) -> None:
    response = await web.client().request(method, path)
    assert response.status_code == 405
    assert response.headers["allow"] == allowed
    assert error_of(response)


@pytest.mark.parametrize(
    "path", ["/", "/v1", "/v1/", "/v2/boxes", "/v1/boxes/x/y/z", "/v1%2Fboxes", "/v1//boxes"]
)
async def test_unknown_paths(web: Web, path: str) -> None:
    response = await web.client().get(path)
    assert response.status_code == 404
    assert error_of(response)


async def test_head_is_get_without_a_body(web: Web) -> None:
    client = web.client()
    for path in ("/healthz", "/v1/boxes", "/v1/images"):
        get, head = await client.get(path), await client.head(path)
        assert (head.status_code, head.content) == (200, b"")
        assert head.headers["content-length"] == get.headers["content-length"]


async def test_a_websocket_is_refused_with_a_status_and_text(web: Web) -> None:
    reader, writer = await web.connect()
    writer.write(
        b"GET /v1/boxes HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: websocket\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    answer = await asyncio.wait_for(reader.read(), 10)
    writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 404 ")
    assert list(json.loads(body)) == ["error"]


async def test_an_unforeseen_failure_is_500_with_an_id_that_the_log_explains(
    web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> None:
        raise LookupError("a fault that nobody foresaw")

    logged = logging.handlers.BufferingHandler(100)
    logger = logging.getLogger("boxd.http")
    monkeypatch.setattr(logger, "propagate", False)
    monkeypatch.setattr(logger, "handlers", [logged])
    monkeypatch.setattr(web.operations.catalog, "images", broken)
    response = await web.client().get("/v1/images")
    assert response.status_code == 500
    match = re.fullmatch(r"internal error \(([0-9a-f]{12})\)", error_of(response))
    assert match is not None
    (record,) = [one for one in logged.buffer if match[1] in one.getMessage()]
    assert record.exc_info is not None
    assert "foresaw" in str(record.exc_info[1])
    assert "foresaw" not in response.text


async def test_the_access_log_shows_no_query_and_no_key(
    web: Web, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    client = web.client()
    await web.operations.workspaces.create_workspace(ALICE, "secretplace")
    await client.get(f"/v1/boxes?ws=secretplace&key={web.key}")
    await client.get(f"/v1/wrk/secretname?key={web.key}")
    text = "\n".join(
        record.getMessage() for record in caplog.records if not record.name.startswith("http")
    )
    assert "GET /v1/boxes 200" in text
    assert "GET /v1/wrk/{path...} 404" in text
    for hidden in ("secretplace", "secretname", web.key):
        assert hidden not in text
