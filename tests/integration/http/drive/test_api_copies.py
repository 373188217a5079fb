"""Clones and snapshots of a drive over HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.harness.http.drives import names
from tests.harness.http.errors import error_of
from wrkfs.types import ROOT_INO, Caller

if TYPE_CHECKING:
    from httpx import Response

    from tests.harness.http.web import Web

SNAPSHOTS = "/v1/drive/snapshots"


def refusal(answer: Response, status: int) -> str:
    """The error of an answer with this status."""
    assert answer.status_code == status, answer.text
    return error_of(answer)


async def test_a_user_restores_a_file_of_yesterday(web: Web) -> None:
    client = web.client()
    await client.put("/v1/wrk/src/a.txt", content=b"old")
    made = await client.post(SNAPSHOTS, params={"path": "/src", "name": "monday"})
    assert made.status_code == 201
    snapshot = made.json()
    assert (snapshot["name"], snapshot["path"]) == ("monday", "/src")
    assert (snapshot["inodes"], snapshot["bytes"]) == (2, 3)
    assert (await client.get(SNAPSHOTS)).json() == [snapshot]

    await client.put("/v1/wrk/src/a.txt", content=b"new")
    assert (await client.get("/v1/wrk/.snapshots/monday/a.txt")).content == b"old"
    assert await names(web, b".snapshots/monday") == [b"a.txt"]
    assert await names(web) == [b"src"]

    restore = f"{SNAPSHOTS}/monday/restore"
    answer = await client.post(restore, params={"path": "/src/a.txt", "to": "/src/b.txt"})
    assert (answer.status_code, answer.json()) == (200, {"path": "/src/b.txt"})
    assert (await client.get("/v1/wrk/src/b.txt")).content == b"old"
    answer = await client.post(restore, params={"path": "/src/a.txt"})
    assert refusal(answer, 409).endswith("exists; remove it, or give another path")
    answer = await client.post(restore, params={"path": "/src/a.txt", "replace": "true"})
    assert (await client.get("/v1/wrk/src/a.txt")).content == b"old"

    assert (await client.delete(f"{SNAPSHOTS}/monday")).status_code == 204
    assert (await client.get(SNAPSHOTS)).json() == []
    assert (await client.get("/v1/wrk/.snapshots/monday/a.txt")).status_code == 404


async def test_nothing_in_a_snapshot_changes(web: Web) -> None:
    client = web.client()
    await client.put("/v1/wrk/a.txt", content=b"old")
    made = (await client.post(SNAPSHOTS)).json()
    assert made["path"] == "/"
    place = f"/v1/wrk/.snapshots/{made['name']}"
    for answer in (
        await client.put(f"{place}/a.txt", content=b"new"),
        await client.put(f"{place}/b.txt", content=b"new"),
        await client.put(f"{place}/d/", content=b""),
        await client.delete(f"{place}/a.txt"),
        await client.delete(place),
        await client.delete("/v1/wrk/.snapshots"),
        await client.put("/v1/wrk/.snapshots/b.txt", content=b"new"),
    ):
        assert "Read-only file system" in refusal(answer, 409)
    assert (await client.get(f"{place}/a.txt")).content == b"old"


async def test_a_directory_is_cloned(web: Web) -> None:
    client = web.client()
    await client.put("/v1/wrk/src/a.txt", content=b"text")
    answer = await client.post("/v1/drive/clone", params={"from": "src", "to": "/copy/"})
    assert (answer.status_code, answer.json()) == (201, {"path": "/copy"})
    await client.put("/v1/wrk/copy/a.txt", content=b"other")
    assert (await client.get("/v1/wrk/src/a.txt")).content == b"text"


@pytest.mark.parametrize(
    ("method", "target", "status", "text"),
    [
        ("POST", "/v1/drive/clone?from=/a.txt", 400, "?from= or ?to= is missing"),
        ("POST", "/v1/drive/clone?from=/a.txt&to=/a.txt", 409, "exists"),
        ("POST", "/v1/drive/clone?from=/a.txt&to=/no/b", 404, "the directory of '/no/b'"),
        ("POST", "/v1/drive/clone?from=/none&to=/b", 404, "'/none' does not exist"),
        ("POST", "/v1/drive/clone?from=/a.txt&to=/", 409, "the root of the drive"),
        ("POST", "/v1/drive/clone?from=/../x&to=/b", 400, "not allowed in a path"),
        ("POST", f"{SNAPSHOTS}?name=a/b", 400, "a snapshot's name has"),
        ("POST", f"{SNAPSHOTS}?name=%FF", 400, "a snapshot's name has"),
        ("POST", f"{SNAPSHOTS}?name=a&name=b", 400, "more than one ?name="),
        ("POST", f"{SNAPSHOTS}?name=kept", 409, "a snapshot of this name exists"),
        ("POST", f"{SNAPSHOTS}?path=/none", 404, "'/none' does not exist"),
        ("POST", f"{SNAPSHOTS}?path=/.snapshots/kept", 400, "nvalid argument"),
        ("DELETE", f"{SNAPSHOTS}/none", 404, "no snapshot has this name"),
        ("POST", f"{SNAPSHOTS}/none/restore", 404, "no snapshot has this name"),
        ("POST", f"{SNAPSHOTS}/kept/restore?path=/none", 404, "does not exist"),
        ("POST", f"{SNAPSHOTS}/kept/restore", 409, "the root of the drive"),
        ("POST", f"{SNAPSHOTS}/kept/restore?replace=x", 400, "?replace= must be true or false"),
        ("PUT", SNAPSHOTS, 405, ""),
    ],
)
async def test_bad_requests(web: Web, method: str, target: str, status: int, text: str) -> None:
    client = web.client()
    await client.put("/v1/wrk/a.txt", content=b"a")
    await client.post(SNAPSHOTS, params={"name": "kept"})
    answer = await client.request(method, target)
    assert text in refusal(answer, status)


async def test_a_link_does_not_lead_out_of_a_snapshot(web: Web) -> None:
    client = web.client()
    await client.put("/v1/wrk/live/a.txt", content=b"live")
    fs = (await web.drives.volume()).fs
    await client.put("/v1/wrk/src/b.txt", content=b"b")
    src = await fs.lookup(ROOT_INO, b"src")
    await fs.symlink(src.ino, b"out", b"/wrk/live", Caller(0, 0))
    await client.post(SNAPSHOTS, params={"path": "/src", "name": "s"})
    answer = await client.post(
        f"{SNAPSHOTS}/s/restore", params={"path": "/src/out/a.txt", "to": "/c"}
    )
    assert "the snapshot has no" in refusal(answer, 404)


async def test_a_drive_that_was_never_used_has_no_snapshots(web: Web) -> None:
    client = web.client()
    assert (await client.get(SNAPSHOTS)).json() == []
    assert "never used" in refusal(await client.post(SNAPSHOTS), 404)
