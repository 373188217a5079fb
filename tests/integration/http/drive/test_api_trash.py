"""The trash of a drive over HTTP: pages, restoring, odd names, malformed requests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest

from tests.harness.http.errors import error_of
from tests.harness.http.web import ALICE

if TYPE_CHECKING:
    import httpx

    from tests.harness.http.web import Web

RESTORE = "/v1/trash/restore"


@pytest.fixture
async def client(web: Web) -> httpx.AsyncClient:
    """Return a client whose drive has a trash."""
    (await web.drives.volume()).meta.trash_seconds = 3600
    return web.client()


async def removed(client: httpx.AsyncClient, *paths: str) -> None:
    """Write files and remove them; `paths` are percent-encoded."""
    for path in paths:
        await client.put(f"/v1/wrk/{path}", content=b"content")
        assert (await client.delete(f"/v1/wrk/{path}")).status_code == 204


async def entries(client: httpx.AsyncClient, **query: object) -> list[dict[str, Any]]:
    """Return all entries, read page by page."""
    found: list[dict[str, Any]] = []
    cursor = None
    while True:
        parameters = {name: str(value) for name, value in query.items()}
        if cursor is not None:
            parameters["cursor"] = cursor
        answer = await client.get("/v1/trash", params=parameters)
        assert answer.status_code == 200, answer.text
        page = answer.json()
        found += page["entries"]
        cursor = page["next"]
        if cursor is None:
            return found


async def test_a_removed_file_is_listed_and_restored(client: httpx.AsyncClient) -> None:
    await removed(client, "a/f")
    (entry,) = await entries(client)
    assert {name: entry[name] for name in entry if name not in ("number", "deleted")} == {
        "path": "/a/f",
        "name": "f",
        "is_dir": False,
        "is_link": False,
        "size": 7,
    }
    answer = await client.post(RESTORE, params={"path": "/a/f"})
    assert (answer.status_code, answer.json()) == (
        200,
        {
            "path": "/a/f",
            "files": 1,
            "directories": 0,
            "missing": [],
            "missing_count": 0,
            "earlier_count": 0,
        },
    )
    assert (await client.get("/v1/wrk/a/f")).content == b"content"
    assert await entries(client) == []


@pytest.mark.parametrize("limit", [1, 2, 3, 1000])
async def test_pages_continue_with_the_cursor(client: httpx.AsyncClient, limit: int) -> None:
    await removed(client, "a/1", "b", "a/2", "c")
    assert [one["path"] for one in await entries(client, limit=limit)] == [
        *("/c", "/a/2", "/b", "/a/1")
    ]
    below = await entries(client, limit=limit, path="a/")
    assert [one["path"] for one in below] == ["/a/2", "/a/1"]


async def test_a_directory_is_restored_to_another_path(client: httpx.AsyncClient) -> None:
    await client.put("/v1/wrk/d/e/f", content=b"content")
    await client.put("/v1/wrk/d/g", content=b"content")
    await client.delete("/v1/wrk/d")
    answer = await client.post(RESTORE, params={"path": "d", "to": "new"})
    assert (answer.json()["path"], answer.json()["files"]) == ("/new", 2)
    assert (await client.get("/v1/wrk/new/e/f")).content == b"content"


async def test_an_older_entry_is_restored_by_its_number(client: httpx.AsyncClient) -> None:
    await removed(client, "f", "f")
    newest, oldest = await entries(client)
    answer = await client.post(f"/v1/trash/{oldest['number']}/restore", params={"to": "/old"})
    assert answer.json()["path"] == "/old"
    assert [one["number"] for one in await entries(client)] == [newest["number"]]


async def test_an_existing_path_is_a_conflict(client: httpx.AsyncClient) -> None:
    await removed(client, "f")
    await client.put("/v1/wrk/f", content=b"new")
    answer = await client.post(RESTORE, params={"path": "f"})
    assert answer.status_code == 409
    assert error_of(answer).startswith("'/f': the former path already exists; restore it to anoth")
    assert (await client.get("/v1/wrk/f")).content == b"new"
    assert (await client.post(RESTORE, params={"path": "f", "to": "g"})).status_code == 200


async def test_names_that_are_not_text(client: httpx.AsyncClient) -> None:
    name = quote(b"\xff+&?=%2f")
    await removed(client, name)
    (entry,) = await entries(client)
    assert entry["path"] == "/\ufffd+&?=%2f"
    assert entry["encoded_path"] == "/" + quote(b"\xff+&?=%2f")
    answer = await client.post(f"{RESTORE}?path={entry['encoded_path']}&to=b%FF")
    assert answer.json()["encoded_path"] == "/b%FF"
    assert (await client.get("/v1/wrk/b%FF")).content == b"content"


@pytest.mark.parametrize(
    ("method", "target", "status", "text"),
    [
        ("GET", "/v1/trash?limit=0", 400, "limit must be 1 to 1000"),
        ("GET", "/v1/trash?limit=x", 400, "?limit= must be 1 to 1000"),
        ("GET", "/v1/trash?limit=1&limit=2", 400, "more than one ?limit="),
        ("GET", "/v1/trash?cursor=x", 400, "the cursor is not valid"),
        ("GET", "/v1/trash?cursor=%FF", 400, "the cursor is not valid"),
        ("GET", "/v1/trash?path=../x", 400, "not allowed in a path"),
        ("GET", "/v1/trash?ws=none", 404, "no workspace"),
        ("POST", RESTORE, 400, "?path= is missing"),
        ("POST", f"{RESTORE}?path=", 400, "is the drive itself"),
        ("POST", f"{RESTORE}?path=a%00", 400, "NUL"),
        ("POST", f"{RESTORE}?path=a&to=/", 400, "is the drive itself"),
        ("POST", f"{RESTORE}?path=a", 404, "the trash has no such entry"),
        ("POST", f"{RESTORE}?path=a&ws=none", 404, "no workspace"),
        ("POST", "/v1/trash/7/restore", 404, "the trash has no such entry"),
        ("POST", "/v1/trash/0/restore", 400, "is a whole number"),
        ("POST", "/v1/trash/x/restore", 400, "is a whole number"),
        ("POST", f"/v1/trash/{'9' * 19}/restore", 400, "is a whole number"),
        ("DELETE", "/v1/trash", 405, ""),
        ("GET", RESTORE, 405, ""),
    ],
)
async def test_malformed_requests(
    client: httpx.AsyncClient, method: str, target: str, status: int, text: str
) -> None:
    answer = await client.request(method, target)
    assert (answer.status_code, text in error_of(answer)) == (status, True), answer.text


async def test_a_drive_that_was_never_used_has_no_trash(web: Web) -> None:
    client = web.client()
    assert (ALICE.owner, None) not in web.drives.volumes
    assert await entries(client) == []
    assert (await client.post(RESTORE, params={"path": "a"})).status_code == 404
    assert (ALICE.owner, None) not in web.drives.volumes


async def test_a_host_without_drives(web_without_drives: Web) -> None:
    client = web_without_drives.client()
    assert (await client.get("/v1/trash")).status_code == 503
    assert (await client.post(RESTORE, params={"path": "a"})).status_code == 503
