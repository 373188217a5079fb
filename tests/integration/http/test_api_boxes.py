"""Boxes, snapshots, forks and shares over HTTP, with bodies in JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.harness.http.errors import error_of

if TYPE_CHECKING:
    from tests.harness.http.web import Web


async def test_a_box_is_created_once_and_then_resumed(web: Web) -> None:
    client = web.client()
    created = await client.post("/v1/boxes", json={"spec": "web^2h"})
    again = await client.post("/v1/boxes", json={"spec": "web"})
    assert (created.status_code, again.status_code) == (201, 200)
    assert created.json()["id"] == again.json()["id"]
    assert created.json()["deadline"] is not None
    assert created.json()["notes"] == []
    shown = await client.get("/v1/boxes/web")
    assert shown.status_code == 200
    assert shown.json()["name"] == "web"


async def test_a_box_is_created_from_a_name_and_options(web: Web) -> None:
    client = web.client()
    await client.post("/v1/workspaces", json={"name": "api"})
    options = {"name": "lab", "image": "debian", "flavor": "small", "deadline": "2h"}
    response = await client.post(
        "/v1/boxes?ws=api", json={**options, "lifetime": "5m", "durable": True}
    )
    assert response.status_code == 201, response.text
    box = response.json()
    assert (box["ref"], box["flavor"], box["grace_s"], box["durable"]) == (
        "api/lab",
        "small",
        300.0,
        True,
    )
    fresh = await client.post("/v1/boxes?ws=api", json={"name": "lab", "fresh": True})
    assert fresh.status_code == 201
    assert fresh.json()["id"] != box["id"]


@pytest.mark.parametrize(
    ("body", "part"),
    [
        ({}, "needs a spec or a name"),
        ({"spec": "web", "name": "web"}, "not both"),
        ({"spec": "web", "fresh": True}, "not both"),
        ({"name": "web", "flavor": "small"}, "a flavor needs an image"),
        ({"spec": 1}, "Expected `str | null`, got `int` - at `$.spec`"),
        ({"spec": "web", "colour": "red"}, "unknown field `colour`"),
        ({"name": "web:debian", "image": "debian"}, "there is no image"),
        ({"spec": "we b"}, "is not valid"),
        ([], "Expected `object`"),
    ],
)
async def test_a_wrong_body_names_its_mistake(web: Web, body: object, part: str) -> None:
    response = await web.client().post("/v1/boxes", json=body)
    assert response.status_code == 400
    assert part in error_of(response)
    assert (await web.client().get("/v1/boxes")).json() == []


@pytest.mark.parametrize(
    ("content", "kind", "status", "part"),
    [
        (b'{"spec": "web"}', "text/plain", 415, "Content-Type: application/json"),
        (b'{"spec": "web"}', "", 415, "Content-Type: application/json"),
        (b'{"spec": "web"', "application/json", 400, "not JSON"),
        (b'{"spec": "\xff"}', "application/json", 400, "not JSON in UTF-8"),
        (b'{"spec": NaN}', "application/json", 400, "not JSON"),
        (b"[" * 100_000, "application/json", 400, "the request body"),
        (b" " * (1024 * 1024 + 1), "application/json", 413, "longer than 1048576 bytes"),
        (b"", "", 400, "needs a spec or a name"),
    ],
)
async def test_a_body_that_is_no_json_is_refused(
    web: Web, content: bytes, kind: str, status: int, part: str
) -> None:
    headers = {"content-type": kind} if kind else {}
    response = await web.client().post("/v1/boxes", content=content, headers=headers)
    assert response.status_code == status
    assert part in error_of(response)


async def test_a_pin_is_set_and_removed(web: Web) -> None:
    client = web.client()
    await client.post("/v1/boxes", json={"spec": "web"})
    pinned = await client.put("/v1/boxes/web/pin", json={"for_s": 3600, "why": "training"})
    assert pinned.status_code == 200, pinned.text
    assert pinned.json()["pin_why"] == "training"
    assert (await client.delete("/v1/boxes/web")).status_code == 409
    unpinned = await client.delete("/v1/boxes/web/pin")
    assert unpinned.json()["pinned_until"] is None
    for body in ({"for_s": 0}, {"for_s": 10**9}, {"why": "a\nb"}, {"for_s": True}):
        response = await client.put("/v1/boxes/web/pin", json=body)
        assert response.status_code == 400, body
    assert (await client.delete("/v1/boxes/web")).status_code == 204


async def test_a_share_opens_its_box_until_it_is_revoked(web: Web) -> None:
    client = web.client()
    await client.post("/v1/boxes", json={"spec": "web"})
    made = await client.post("/v1/boxes/web/shares", json={"ttl_s": 60})
    assert made.status_code == 201
    share = made.json()
    assert share["token"].startswith("svcs_")
    (listed,) = (await client.get("/v1/shares")).json()
    assert (await client.get("/v1/boxes/web/shares")).json() == [listed]
    assert "token" not in listed
    assert listed["id"] == share["id"]
    assert (await client.delete(f"/v1/shares/{share['id'][:8]}")).status_code == 204
    assert (await client.get("/v1/shares")).json() == []
    assert (await client.delete(f"/v1/shares/{share['id'][:8]}")).status_code == 404


async def test_every_response_has_an_id_of_its_own(web: Web) -> None:
    client = web.client()
    responses = [await client.get("/v1/boxes") for _ in range(3)]
    responses.append(await client.get("/nowhere"))
    ids = {response.headers["x-request-id"] for response in responses}
    assert len(ids) == 4
    assert all(len(one) == 16 for one in ids)


async def test_a_repeated_creation_gets_the_first_response(web: Web) -> None:
    client = web.client()
    key = {"idempotency-key": "one"}
    await client.post("/v1/boxes", json={"spec": "web"})
    first = await client.post("/v1/boxes/web/shares", json={"ttl_s": 60}, headers=key)
    again = await client.post("/v1/boxes/web/shares", json={"ttl_s": 60}, headers=key)
    assert (first.status_code, again.status_code) == (201, 201)
    assert first.json() == again.json()
    assert "idempotent-replayed" not in first.headers
    assert again.headers["idempotent-replayed"] == "true"
    assert len((await client.get("/v1/shares")).json()) == 1
    other = await client.post("/v1/boxes/web/shares", json={"ttl_s": 61}, headers=key)
    assert other.status_code == 400
    bad = await client.post("/v1/boxes", json={"spec": "x"}, headers={"idempotency-key": "a b"})
    assert bad.status_code == 400
    refused = await web.client(key="svc_0").post("/v1/boxes", json={"spec": "x"}, headers=key)
    assert refused.status_code == 401


async def test_responses_say_how_many_requests_may_be_in_progress(web: Web) -> None:
    headers = (await web.client().get("/v1/boxes")).headers
    assert int(headers["ratelimit-limit"]) > int(headers["ratelimit-remaining"]) >= 0
    assert headers["ratelimit-reset"] == "1"
    assert "ratelimit-limit" not in (await web.client(key="").get("/healthz")).headers
