"""API keys at the HTTP API: one way to look at whatever is shown, and their last use."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from tests.harness.http.web import ALICE
from tests.harness.wait import until

if TYPE_CHECKING:
    from datetime import datetime

    from boxd.model.access.key import ApiKey
    from tests.harness.http.web import Web


async def test_every_key_is_looked_up_once_and_alike(
    web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bytes] = []
    find = web.store.find_key

    async def counted(sha256: bytes, now: datetime) -> ApiKey | None:
        asked.append(sha256)
        return await find(sha256, now)

    expired = await web.new_key(ttl=timedelta(microseconds=1), name="expired")
    revoked = await web.new_key(name="revoked")
    await web.operations.keys.remove_key(ALICE, "revoked")
    monkeypatch.setattr(web.store, "find_key", counted)
    shown = {web.key: 200, expired: 401, revoked: 401, "svc_" + "0" * 40: 401, "nonsense": 401}
    for key, status in shown.items():
        asked.clear()
        assert (await web.client(key).get("/v1/boxes")).status_code == status
        assert [len(sha256) for sha256 in asked] == [32], key
    bare = web.client("x" * 4097)
    for shown_by in ({}, {"authorization": "Basic x"}, {"x-api-key": ""}, None):
        if shown_by is None:
            del bare.headers["authorization"]
        for path in ("/v1/boxes", "/v1/boxes/web/proxy/80/"):
            asked.clear()
            assert (await bare.get(path, headers=shown_by)).status_code == 401
            assert [len(sha256) for sha256 in asked] == [32], (shown_by, path)


async def test_the_last_use_is_noted_behind_the_request_and_once_a_minute(
    web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted: list[str] = []
    go_on = asyncio.Event()
    uses = web.operations.callers.key_uses
    touch = web.store.touch_key

    async def late(key_id: str, when: datetime) -> None:
        noted.append(key_id)
        await go_on.wait()
        await touch(key_id, when)

    monkeypatch.setattr(uses, "_write_to_store", late)
    client = web.client()
    for _ in range(5):
        assert (await client.get("/v1/boxes")).status_code == 200
    (key,) = await web.store.keys(ALICE.owner)
    assert (noted, key.last_used) == ([key.id], None)
    go_on.set()

    def used() -> bool:
        return web.store._keys[key.id][0].last_used is not None

    await until(used)


async def test_a_key_that_is_no_good_is_never_noted_as_used(web: Web) -> None:
    expired = await web.new_key(ttl=timedelta(microseconds=1), name="expired")
    assert (await web.client(expired).get("/v1/boxes")).status_code == 401
    await web.operations.close()
    assert [key.last_used for key in await web.store.keys(ALICE.owner)] == [None, None]


@pytest.mark.parametrize(
    "path", ["/v1/boxes", "/v1/images", "/v1/wrk/", "/v1/surfaces", "/v1/trash"]
)
async def test_the_query_counts_only_where_browsers_come(web: Web, path: str) -> None:
    client = web.client()
    del client.headers["authorization"]
    for name in ("key", "k%65y", "KEY"):
        assert (await client.get(f"{path}?{name}={web.key}")).status_code == 401
