"""Workspaces, profiles, secrets, keys, the agent, questions and figures over HTTP."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from urllib.parse import quote

from boxd.principal import Principal
from tests.harness.http.errors import error_of
from tests.harness.http.web import ALICE

if TYPE_CHECKING:
    from tests.harness.http.web import Web


async def test_a_workspace_is_created_used_and_removed(web: Web) -> None:
    client = web.client()
    made = await client.post("/v1/workspaces", json={"name": "api"})
    assert (made.status_code, made.json()["name"]) == (201, "api")
    assert (await client.post("/v1/workspaces", json={"name": "api"})).status_code == 409
    await client.put("/v1/profiles/py", json={"image": "debian"})
    changed = await client.put("/v1/workspaces/api/profile", json={"profile": "py"})
    assert changed.json()["profile"] == "py"
    assert (await client.put("/v1/workspaces/api/profile", json={})).status_code == 400
    await client.post("/v1/boxes?ws=api", json={"spec": "web"})
    refused = await client.delete("/v1/workspaces/api")
    assert refused.status_code == 409
    assert (await client.delete("/v1/workspaces/api?force=true")).status_code == 204
    names = [one["name"] for one in (await client.get("/v1/workspaces")).json()]
    assert names == [None]


async def test_a_profile_is_set_shown_and_removed(web: Web) -> None:
    client = web.client()
    body = {"image": "debian", "flavor": "small", "lifetime_s": 300, "egress": "none"}
    made = await client.put("/v1/profiles/py", json=body)
    assert made.status_code == 200, made.text
    assert made.json() == {
        "name": "py",
        "image": "debian",
        "flavor": "small",
        "lifetime_s": 300.0,
        "deadline_s": None,
        "egress": "none",
        "durable": False,
        "built_from": None,
    }
    assert (await client.get("/v1/profiles/py")).json() == made.json()
    assert (await client.get("/v1/profiles")).json() == [made.json()]
    assert (await client.put("/v1/profiles/py", json={})).status_code == 400
    assert (await client.put("/v1/profiles/py", json={**body, "lifetime_s": 0})).status_code == 400
    unknown = await client.put("/v1/profiles/py", json={"image": "nonsense"})
    assert unknown.status_code == 400
    assert "nonsense" in error_of(unknown)
    assert (await client.delete("/v1/profiles/py")).status_code == 204
    assert (await client.get("/v1/profiles/py")).status_code == 404


async def test_a_secret_is_set_and_its_value_never_comes_back(web: Web) -> None:
    client = web.client()
    first = await client.put("/v1/secrets/TOKEN", json={"value": "hidden-1", "tier": "account"})
    second = await client.put("/v1/secrets/TOKEN", json={"value": "hidden-2", "tier": "account"})
    assert (first.status_code, second.status_code) == (201, 200)
    listed = await client.get("/v1/secrets")
    assert [(one["name"], one["tier"]) for one in listed.json()] == [("TOKEN", "account")]
    for response in (first, second, listed):
        assert "hidden" not in response.text
    wrong = await client.put("/v1/secrets/TOKEN", json={"value": 7, "secret": "hidden-3"})
    assert wrong.status_code == 400
    assert "hidden" not in wrong.text
    assert (await client.delete("/v1/secrets/TOKEN?tier=nobody")).status_code == 400
    assert (await client.delete("/v1/secrets/TOKEN")).status_code == 404
    assert (await client.delete("/v1/secrets/TOKEN?tier=account")).status_code == 204
    assert (await client.get("/v1/secrets")).json() == []


async def test_the_agent_is_set_and_removed(web: Web) -> None:
    client = web.client()
    assert (await client.get("/v1/agent")).status_code == 404
    body = {"cmd": "my-agent -p", "env": "AGENT_TOKEN", "token": "hidden"}
    made = await client.put("/v1/agent", json=body)
    assert made.status_code == 200, made.text
    assert (await client.get("/v1/agent")).json() == made.json()
    assert "hidden" not in made.text
    assert (await client.put("/v1/agent", json={**body, "format": "xml"})).status_code == 400
    assert (await client.delete("/v1/agent")).status_code == 204
    assert (await client.delete("/v1/agent")).status_code == 404


async def test_a_key_revokes_itself(web: Web) -> None:
    key = await web.new_key(name="short")
    client = web.client(key=key)
    assert "short" in [one["name"] for one in (await client.get("/v1/keys")).json()]
    assert (await client.delete("/v1/keys/short")).status_code == 204
    assert (await client.get("/v1/keys")).status_code == 401


async def test_the_account_has_a_name_and_its_keys_go(web: Web) -> None:
    client = web.client()
    (first,) = (await client.get("/v1/account/keys")).json()
    assert (first["name"], first["first"]) == ("first", True)
    assert (await client.delete("/v1/account/keys/first")).status_code == 409
    fingerprint = "SHA256:" + "a/+" * 14 + "b"
    _, code = await web.operations.ssh_keys.add_key(ALICE, "phone")
    phone = Principal(fingerprint, None, "ssh_key")
    await web.operations.ssh_keys.confirm_key(phone, code.reveal())
    listed = (await client.get("/v1/account/keys")).json()
    assert [key["fingerprint"] for key in listed] == [ALICE.owner, fingerprint]
    path = "/v1/account/keys/" + quote(fingerprint, safe="")
    assert (await client.delete(path)).status_code == 204
    assert (await client.delete(path)).status_code == 404
    assert (await client.get("/v1/account/keys")).json() == [first | {"last_used": None}]
    named = await client.put("/v1/account", json={"name": "Alice"})
    assert (named.status_code, named.json()) == (200, {"name": "Alice"})
    assert (await client.get("/v1/whoami")).json()["name"] == "Alice"
    assert (await client.put("/v1/account", json={"name": "a\nb"})).status_code == 400
    assert (await client.put("/v1/account", json={})).status_code == 400
    assert (await client.put("/v1/account", json={"name": None})).json() == {"name": None}


async def test_a_waiting_question_gets_its_answer(web: Web) -> None:
    client = web.client()
    body = {"question": "Deploy?", "options": ["yes", "no"]}
    asked = (await client.post("/v1/asks", json=body)).json()
    assert asked["state"] == "open"
    (listed,) = (await client.get("/v1/asks")).json()
    assert (listed["id"], listed["question"]) == (asked["id"], "Deploy?")
    path = f"/v1/asks/{asked['id']}"
    waiting = asyncio.create_task(web.client().get(f"{path}?wait_s=60"))
    wrong = await client.post(f"{path}/answer", json={"answer": "perhaps"})
    assert wrong.status_code == 400
    answered = await client.post(f"{path}/answer", json={"answer": "yes"})
    assert answered.json() == {"id": asked["id"], "state": "answered", "answer": "yes"}
    assert (await waiting).json() == answered.json()
    assert (await client.post(f"{path}/answer", json={"answer": "no"})).status_code == 409
    for wait_s in ("-1", "601", "x", "1e3", "9" * 4000):
        assert (await client.get(f"{path}?wait_s={wait_s}")).status_code == 400, wait_s


async def test_a_client_that_leaves_ends_its_wait(web: Web) -> None:
    reader, writer = await web.connect()
    head = f"POST /v1/asks HTTP/1.1\r\nHost: x\r\nX-Api-Key: {web.key}\r\n"
    body = b'{"question": "Go?", "wait_s": 600}'
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    client = web.client()
    async with asyncio.timeout(30):
        while not (await client.get("/v1/asks")).json():
            pass
    writer.close()
    assert await reader.read() == b""


async def test_figures_name_the_caller(web: Web) -> None:
    client = web.client()
    await client.post("/v1/workspaces", json={"name": "api"})
    await client.post("/v1/boxes", json={"spec": "web"})
    identity = (await client.get("/v1/whoami")).json()
    assert (identity["fingerprint"], identity["boxes"], identity["scope"]) == (
        "SHA256:alice",
        1,
        None,
    )
    assert identity["workspaces"] == ["api"]
    scoped = web.client(key=await web.new_key(scope="api", name="scoped"))
    confined = (await scoped.get("/v1/whoami")).json()
    assert (confined["boxes"], confined["workspaces"], confined["api_keys"]) == (0, ["api"], None)
    assert confined["scope"] == "api"
    figures = {one["what"] for one in (await client.get("/v1/stat")).json()}
    assert {"boxes", "running boxes", "api keys"} <= figures
    assert (await scoped.get("/v1/stat")).status_code == 403
    assert (await client.get("/v1/boxes/web/stat")).status_code == 200
