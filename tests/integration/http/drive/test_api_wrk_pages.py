"""Pages of a listing, and moves of files and directories, over HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

if TYPE_CHECKING:
    from tests.harness.http.web import Web


async def test_a_directory_is_listed_in_pages(web: Web) -> None:
    client = web.client()
    names = ["a", "b c", "d%", "e\u00e9", "f"]
    for name in names:
        await client.put(f"/v1/wrk/dir/{quote(name)}", content=b"x")
    found, cursor = [], ""
    for _ in range(3):
        page = (await client.get(f"/v1/wrk/dir?limit=2{cursor}")).json()
        found.append([entry["name"] for entry in page["entries"]])
        cursor = f"&cursor={page['next']}"
    assert found == [names[:2], names[2:4], names[4:]]
    assert cursor == "&cursor=None"
    whole = (await client.get("/v1/wrk/dir?limit=5")).json()
    assert (len(whole["entries"]), whole["next"]) == (5, None)
    for wrong in ("0", "10001", "-1", "x", "9" * 5000, "1&limit=2"):
        assert (await client.get(f"/v1/wrk/dir?limit={wrong}")).status_code == 400, wrong


async def test_files_and_directories_are_moved(web: Web) -> None:
    client = web.client()
    for name in ("dir/one", "two"):
        await client.put(f"/v1/wrk/{name}", content=name.encode())
    moved = await client.post("/v1/drive/move?from=/dir&to=/new")
    assert (moved.status_code, moved.json()) == (200, {"path": "/new"})
    assert (await client.get("/v1/wrk/new/one")).content == b"dir/one"
    assert (await client.get("/v1/wrk/dir")).status_code == 404
    taken = await client.post("/v1/drive/move?from=/two&to=/new/one")
    assert taken.status_code == 409
    assert (await client.get("/v1/wrk/new/one")).content == b"dir/one"
    replaced = await client.post("/v1/drive/move?from=/two&to=/new/one&replace=true")
    assert replaced.status_code == 200
    assert (await client.get("/v1/wrk/new/one")).content == b"two"
    for source, target, status in (
        ("/absent", "/x", 404),
        ("/new", "/absent/x", 404),
        ("/", "/x", 400),
        ("/new", "/", 400),
        ("/new", "/new/inside", 400),
    ):
        response = await client.post(f"/v1/drive/move?from={source}&to={target}")
        assert response.status_code == status, (source, target, response.text)
    assert (await client.post("/v1/drive/move?from=/new")).status_code == 400
