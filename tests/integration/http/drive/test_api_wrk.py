"""The drive over HTTP: reading, writing, listing, removing, preconditions, odd names."""

from __future__ import annotations

import asyncio
import hashlib
import os
import stat
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote_to_bytes

import pytest

from tests.harness.http.drives import names
from tests.harness.http.errors import error_of
from tests.harness.http.web import ALICE, BOB
from wrkfs import paths
from wrkfs.errors import NotFound
from wrkfs.types import ROOT_INO, Caller, SetAttr

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.harness.http.web import Web

ROOT = Caller(0, 0)


async def symlink(web: Web, path: bytes, target: bytes) -> None:
    """Makes a symbolic link as a box would."""
    fs = (await web.drives.volume()).fs
    place = await paths.resolve(fs, path, follow=False)
    await fs.symlink(place.parent, place.name, target, ROOT)


async def test_a_file_goes_in_and_comes_out(web: Web) -> None:
    client = web.client()
    made = await client.put("/v1/wrk/a.txt", content=b"hello")
    assert (made.status_code, made.content) == (201, b"")
    got = await client.get("/v1/wrk/a.txt")
    assert (got.status_code, got.content) == (200, b"hello")
    assert got.headers["content-length"] == "5"
    assert got.headers["content-type"] == "text/plain; charset=utf-8"
    assert got.headers["accept-ranges"] == "bytes"
    assert got.headers["cache-control"] == "private, no-cache"
    assert got.headers["content-security-policy"] == "sandbox"
    assert got.headers["x-content-type-options"] == "nosniff"
    assert got.headers["last-modified"].endswith(" GMT")
    assert got.headers["etag"] == made.headers["etag"]
    over = await client.put("/v1/wrk/a.txt", content=b"again")
    assert (over.status_code, over.content) == (204, b"")
    assert over.headers["etag"] != made.headers["etag"]
    assert (await client.get("/v1/wrk/a.txt")).content == b"again"
    assert (await client.delete("/v1/wrk/a.txt")).status_code == 204
    assert (await client.get("/v1/wrk/a.txt")).status_code == 404
    assert (await client.delete("/v1/wrk/a.txt")).status_code == 404


@pytest.mark.parametrize("size", [0, 1, 65536, 65537, 4 << 20, (4 << 20) + 1, 9_999_999])
async def test_sizes_around_the_borders_of_blocks(web: Web, size: int) -> None:
    client, data = web.client(), os.urandom(size)
    assert (await client.put("/v1/wrk/f", content=data)).status_code == 201
    got = await client.get("/v1/wrk/f")
    assert got.headers["content-length"] == str(size)
    assert hashlib.sha256(got.content).digest() == hashlib.sha256(data).digest()


async def test_64_mib_both_ways_in_chunks_of_unknown_length(web: Web) -> None:
    block = os.urandom(1 << 20)

    async def body() -> AsyncIterator[bytes]:
        for number in range(64):
            yield number.to_bytes(4, "big") + block[4:]

    client = web.client()
    assert (await client.put("/v1/wrk/big", content=body())).status_code == 201
    digest, count = hashlib.sha256(), 0
    async with client.stream("GET", "/v1/wrk/big") as response:
        async for piece in response.aiter_raw():
            digest.update(piece)
            count += len(piece)
    expected = hashlib.sha256()
    async for piece in body():
        expected.update(piece)
    assert count == 64 << 20
    assert digest.digest() == expected.digest()


async def test_parents_are_made_and_directories_listed_by_name(web: Web) -> None:
    client = web.client()
    for name in ("b", "a/x/deep.txt", "c", "a.txt", "A", "aa"):
        assert (await client.put(f"/v1/wrk/{name}", content=b"12345")).status_code == 201
    listing = await client.get("/v1/wrk/")
    assert listing.headers["content-type"] == "application/json"
    document = listing.json()
    assert (document["dir"], document["path"], document["next"]) == (True, "/", None)
    entries = {entry["name"]: entry for entry in document["entries"]}
    assert list(entries) == ["A", "a", "a.txt", "aa", "b", "c"]
    for name, entry in entries.items():
        assert set(entry) == {"name", "is_dir", "size", "mtime", "etag"}
        assert entry["is_dir"] is (name == "a")
        assert (entry["etag"] is None) is entry["is_dir"]
    file = await client.get("/v1/wrk/a.txt")
    assert entries["a.txt"]["etag"] == file.headers["etag"]
    assert entries["a.txt"]["size"] == 5
    changed = parsedate_to_datetime(file.headers["last-modified"])
    assert datetime.fromisoformat(entries["a.txt"]["mtime"]) == changed
    for path in ("/v1/wrk/a/x", "/v1/wrk/a/x/", "/v1/wrk//a//x//", "/v1/wrk/a%2Fx"):
        inner = (await client.get(path)).json()
        assert inner["path"] == "/a/x"
        assert [entry["name"] for entry in inner["entries"]] == ["deep.txt"]
    assert (await client.get("/v1/wrk")).json() == listing.json()


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


async def test_a_large_directory_is_listed_whole(web: Web) -> None:
    fs = (await web.drives.volume()).fs
    for number in range(3500):
        await fs.mknod(ROOT_INO, b"%05d" % ((number * 7919) % 3500), stat.S_IFREG | 0o644, 0, ROOT)
    listing = (await web.client().get("/v1/wrk/")).json()
    assert [entry["name"] for entry in listing["entries"]] == [f"{n:05d}" for n in range(3500)]


async def test_head_is_get_without_a_body(web: Web) -> None:
    client = web.client()
    await client.put("/v1/wrk/d/f.bin", content=b"12345")
    head, got = await client.head("/v1/wrk/d/f.bin"), await client.get("/v1/wrk/d/f.bin")
    assert (head.status_code, head.content) == (200, b"")
    for name in ("content-length", "etag", "last-modified", "content-type", "accept-ranges"):
        assert head.headers[name] == got.headers[name]
    assert (await client.head("/v1/wrk/d")).status_code == 200
    assert (await client.head("/v1/wrk/absent")).status_code == 404


async def test_directories_are_made_with_a_trailing_slash(web: Web) -> None:
    client = web.client()
    assert (await client.put("/v1/wrk/a/b/c/")).status_code == 201
    assert (await client.put("/v1/wrk/a/b/c/")).status_code == 204
    assert (await client.put("/v1/wrk/a/")).status_code == 204
    assert (await client.put("/v1/wrk/")).status_code == 204
    assert await names(web, b"a/b") == [b"c"]
    refused = await client.put("/v1/wrk/e/", content=b"x")
    assert refused.status_code == 400
    assert "slash" in error_of(refused)
    assert await names(web) == [b"a"]


async def test_things_in_the_way(web: Web) -> None:
    client = web.client()
    await client.put("/v1/wrk/file", content=b"x")
    await client.put("/v1/wrk/dir/")
    for path in ("/v1/wrk/dir", "/v1/wrk/file/below", "/v1/wrk/file/a/b", "/v1/wrk"):
        refused = await client.put(path, content=b"y")
        assert refused.status_code == (400 if path == "/v1/wrk" else 409), path
        assert error_of(refused)
    for path in ("/v1/wrk/file/", "/v1/wrk/file/below/"):
        assert (await client.put(path)).status_code == 409
    for path in ("/v1/wrk/file/", "/v1/wrk/file/below", "/v1/wrk/file/a/b"):
        assert (await client.get(path)).status_code == 404
        assert (await client.delete(path)).status_code == 404
    assert (await client.get("/v1/wrk/file")).content == b"x"
    assert await names(web) == [b"dir", b"file"]


@pytest.mark.parametrize(
    "path",
    [
        "..",
        ".",
        "a/../b",
        "a/./b",
        "%2e%2e",
        "a/%2e%2E/b",
        "..%2f..",
        "a%00b",
        "x" * 256,
        "a/" + "x" * 256 + "/b",
        "a/" * 2049 + "b",
    ],
)
@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE"])
async def test_malformed_paths_are_refused(web: Web, method: str, path: str) -> None:
    reader, writer = await web.connect()
    writer.write(
        f"{method} /v1/wrk/{path} HTTP/1.1\r\nHost: x\r\nX-Api-Key: {web.key}\r\n"
        "Connection: close\r\nContent-Length: 0\r\n\r\n".encode()
    )
    answer = await asyncio.wait_for(reader.read(), 10)
    writer.close()
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert await names(web) == []


@pytest.mark.parametrize(
    "quoted",
    [
        "x" * 255,
        "%ff%fe",
        "%E2%98%83",
        "a%5Cb",
        "...",
        "..a",
        "%2525",
        "a+b",
        "a%20b",
        "%22%3Cscript%3E",
        "%0A%0D",
        "%3Fws=x%23",
        "a;b=c,d",
        "%80",
    ],
)
async def test_odd_names_are_kept_byte_for_byte(web: Web, quoted: str) -> None:
    client = web.client()
    name = unquote_to_bytes(quoted)
    assert (await client.put(f"/v1/wrk/{quoted}", content=b"odd")).status_code == 201
    assert await names(web) == [name]
    assert (await client.get(f"/v1/wrk/{quoted}")).content == b"odd"
    listed = (await client.get("/v1/wrk/")).json()["entries"][0]
    assert unquote_to_bytes(listed.get("encoded_name", quote(listed["name"]))) == name
    assert (await client.delete(f"/v1/wrk/{quoted}")).status_code == 204
    assert await names(web) == []


@pytest.mark.parametrize(
    ("value", "status", "expected"),
    [
        ("bytes=0-0", 206, slice(0, 1)),
        ("bytes=10-19", 206, slice(10, 20)),
        ("bytes=99990-", 206, slice(99990, 100_000)),
        ("bytes=-7", 206, slice(-7, None)),
        ("bytes=-999999999", 206, slice(0, None)),
        ("bytes=5-99999999999999999999", 200, slice(0, None)),
        ("bytes=0-1,5-6", 200, slice(0, None)),
        ("bytes=9-3", 200, slice(0, None)),
        ("bytes=a-", 200, slice(0, None)),
        ("lines=0-1", 200, slice(0, None)),
        ("bytes", 200, slice(0, None)),
        ("bytes=100000-", 416, None),
        ("bytes=-0", 416, None),
        ("bytes=" + ",".join(f"{n}-{n}" for n in range(1000)), 200, slice(0, None)),
    ],
)
async def test_ranges(web: Web, value: str, status: int, expected: slice | None) -> None:
    client, data = web.client(), os.urandom(100_000)
    await client.put("/v1/wrk/f", content=data)
    got = await client.get("/v1/wrk/f", headers={"range": value})
    assert got.status_code == status
    if expected is None:
        assert got.headers["content-range"] == "bytes */100000"
        assert error_of(got)
        return
    assert got.content == data[expected]
    if status == 206:
        start, stop, _ = expected.indices(100_000)
        assert got.headers["content-range"] == f"bytes {start}-{stop - 1}/100000"
    head = await client.head("/v1/wrk/f", headers={"range": value})
    assert (head.status_code, head.headers["content-length"]) == (200, "100000")


async def test_range_only_of_the_version_that_was_seen(web: Web) -> None:
    client = web.client()
    tag = (await client.put("/v1/wrk/f", content=b"0123456789")).headers["etag"]
    asked = {"range": "bytes=2-3", "if-range": tag}
    assert (await client.get("/v1/wrk/f", headers=asked)).content == b"23"
    await client.put("/v1/wrk/f", content=b"abcdefghij")
    whole = await client.get("/v1/wrk/f", headers=asked)
    assert (whole.status_code, whole.content) == (200, b"abcdefghij")
    twice = [("range", "bytes=0-1"), ("range", "bytes=2-3")]
    assert (await client.get("/v1/wrk/f", headers=twice)).status_code == 400


async def test_unchanged_files_are_not_sent_again(web: Web) -> None:
    client = web.client()
    tag = (await client.put("/v1/wrk/f", content=b"x")).headers["etag"]
    for value in (tag, f"W/{tag}", f'"other", {tag}', "*"):
        for method in ("GET", "HEAD"):
            answer = await client.request(method, "/v1/wrk/f", headers={"if-none-match": value})
            assert (answer.status_code, answer.content) == (304, b"")
            assert answer.headers["etag"] == tag
    fresh = await client.get("/v1/wrk/f", headers={"if-none-match": '"other"'})
    assert (fresh.status_code, fresh.content) == (200, b"x")
    assert (await client.get("/v1/wrk/f", headers={"if-none-match": "bad"})).status_code == 400


async def test_preconditions_of_put(web: Web) -> None:
    client = web.client()
    absent, present = {"if-none-match": "*"}, {"if-match": "*"}
    assert (await client.put("/v1/wrk/f", content=b"0", headers=present)).status_code == 412
    assert (await client.put("/v1/wrk/f", content=b"1", headers=absent)).status_code == 201
    assert (await client.put("/v1/wrk/f", content=b"2", headers=absent)).status_code == 412
    first = await client.put("/v1/wrk/f", content=b"3", headers=present)
    assert first.status_code == 204
    tag = first.headers["etag"]
    second = await client.put("/v1/wrk/f", content=b"4", headers={"if-match": f'"no", {tag}'})
    assert second.status_code == 204
    stale = await client.put("/v1/wrk/f", content=b"5", headers={"if-match": tag})
    assert stale.status_code == 412
    assert second.headers["etag"] in error_of(stale)
    weak = {"if-match": f"W/{second.headers['etag']}"}
    assert (await client.put("/v1/wrk/f", content=b"6", headers=weak)).status_code == 412
    known = {"if-none-match": second.headers["etag"]}
    assert (await client.put("/v1/wrk/f", content=b"7", headers=known)).status_code == 412
    assert (await client.get("/v1/wrk/f")).content == b"4"
    ranged = {"content-range": "bytes 0-0/1"}
    assert (await client.put("/v1/wrk/f", content=b"8", headers=ranged)).status_code == 400


async def test_a_precondition_is_checked_again_when_the_file_appears(web: Web) -> None:
    client = web.client()
    tag = (await client.put("/v1/wrk/f", content=b"old")).headers["etag"]
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def body() -> AsyncIterator[bytes]:
        yield b"la"
        begun.set()
        await go_on.wait()
        yield b"te"

    for headers in ({"if-match": tag}, {"if-none-match": "*"}):
        begun.clear()
        go_on.clear()
        path = "/v1/wrk/f" if "if-match" in headers else "/v1/wrk/g"
        late = asyncio.create_task(client.put(path, content=body(), headers=headers))
        await asyncio.wait_for(begun.wait(), 10)
        await (web.client()).put(path, content=b"between")
        go_on.set()
        assert (await late).status_code == 412
        assert (await client.get(path)).content == b"between"


async def test_preconditions_of_delete(web: Web) -> None:
    client = web.client()
    tag = (await client.put("/v1/wrk/f", content=b"x")).headers["etag"]
    other = {"if-match": '"1-1"'}
    assert (await client.delete("/v1/wrk/f", headers=other)).status_code == 412
    assert (await client.delete("/v1/wrk/f", headers={"if-match": tag})).status_code == 204


async def test_delete_removes_trees_but_not_the_root(web: Web) -> None:
    client = web.client()
    for name in ("d/a/b/c.txt", "d/e", "keep"):
        await client.put(f"/v1/wrk/{name}", content=b"x")
    assert (await client.delete("/v1/wrk/d")).status_code == 204
    assert await names(web) == [b"keep"]
    for path in ("/v1/wrk", "/v1/wrk/", "/v1/wrk//"):
        refused = await client.delete(path)
        assert refused.status_code == 400
        assert "root" in error_of(refused)
    assert await names(web) == [b"keep"]


async def test_symbolic_links_stay_inside_the_drive(web: Web) -> None:
    client = web.client()
    await client.put("/v1/wrk/d/target.txt", content=b"inside")
    for name, target in (
        (b"relative", b"d/target.txt"),
        (b"absolute", b"/wrk/d/target.txt"),
        (b"d/up", b"../d/target.txt"),
        (b"folder", b"d"),
        (b"out", b"/etc/passwd"),
        (b"above", b"../../../etc/passwd"),
        (b"almost", b"/wrkother/x"),
        (b"loop", b"loop"),
        (b"dangling", b"d/none"),
    ):
        await symlink(web, name, target)
    for path in ("relative", "absolute", "d/up", "folder/target.txt"):
        assert (await client.get(f"/v1/wrk/{path}")).content == b"inside", path
    for path in ("out", "above", "almost", "loop", "dangling"):
        assert (await client.get(f"/v1/wrk/{path}")).status_code == 404, path
    for path in ("out", "above", "loop"):
        refused = await client.put(f"/v1/wrk/{path}", content=b"x")
        assert refused.status_code in (404, 409), path
    written = await client.put("/v1/wrk/relative", content=b"through")
    assert written.status_code == 204
    assert (await client.get("/v1/wrk/d/target.txt")).content == b"through"
    assert (await client.put("/v1/wrk/dangling", content=b"made")).status_code == 201
    assert (await client.get("/v1/wrk/d/none")).content == b"made"
    assert (await client.delete("/v1/wrk/relative")).status_code == 204
    assert (await client.delete("/v1/wrk/folder")).status_code == 204
    assert (await client.get("/v1/wrk/d/target.txt")).content == b"through"


async def test_what_is_no_file_is_not_read(web: Web) -> None:
    fs = (await web.drives.volume()).fs
    await fs.mknod(ROOT_INO, b"pipe", stat.S_IFIFO | 0o644, 0, ROOT)
    client = web.client()
    assert (await client.get("/v1/wrk/pipe")).status_code == 404
    assert (await client.put("/v1/wrk/pipe", content=b"x")).status_code == 409
    assert (await client.delete("/v1/wrk/pipe")).status_code == 204


async def test_downloads_are_named(web: Web) -> None:
    client = web.client()
    await client.put("/v1/wrk/d/a%22b.html", content=b"x")
    got = await client.get("/v1/wrk/d/a%22b.html?download")
    assert got.headers["content-disposition"] == "attachment; filename*=UTF-8''a%22b.html"
    assert "content-disposition" not in (await client.get("/v1/wrk/d/a%22b.html")).headers


async def test_workspaces_have_drives_of_their_own(web: Web) -> None:
    client = web.client()
    for method in ("GET", "HEAD", "DELETE"):
        assert (await client.request(method, "/v1/wrk/f?ws=ws1")).status_code == 404
    assert (await client.put("/v1/wrk/f?ws=ws1", content=b"one")).status_code == 201
    assert (await client.put("/v1/wrk/f", content=b"default")).status_code == 201
    assert (await client.get("/v1/wrk/f?ws=ws1")).content == b"one"
    assert (await client.get("/v1/wrk/f")).content == b"default"
    stranger = web.client(await web.new_key(BOB))
    assert (await stranger.get("/v1/wrk/f")).status_code == 404
    assert (await stranger.get("/v1/wrk/")).json()["entries"] == []
    for bad in ("..%2Fx", "NO_GOOD", "", "%ff", "a&ws=b"):
        refused = await client.get(f"/v1/wrk/f?ws={bad}")
        assert refused.status_code == 400
        assert error_of(refused)


async def test_a_scoped_key_reaches_its_drive_only(web: Web) -> None:
    await web.client().put("/v1/wrk/secret", content=b"account")
    scoped = web.client(await web.new_key(scope="ws1"))
    assert (await scoped.get("/v1/wrk/secret")).status_code == 404
    assert (await scoped.put("/v1/wrk/f", content=b"mine")).status_code == 201
    assert (await web.client().get("/v1/wrk/f?ws=ws1")).content == b"mine"
    for method in ("GET", "PUT", "DELETE"):
        refused = await scoped.request(method, "/v1/wrk/f?ws=ws2")
        assert refused.status_code == 403
        assert "ws1" in error_of(refused)
    assert await web.store.workspaces(ALICE.owner) == ["ws1"]


async def test_drives_may_be_off(web_without_drives: Web) -> None:
    client = web_without_drives.client()
    for method in ("GET", "PUT", "DELETE"):
        answer = await client.request(method, "/v1/wrk/f")
        assert answer.status_code == 503
        assert "not enabled" in error_of(answer)


async def test_changes_over_http_are_there_inside_and_the_other_way_round(web: Web) -> None:
    volume, client = await web.drives.volume(), web.client()
    await client.put("/v1/wrk/d/f", content=b"from outside")
    found = await paths.resolve(volume.fs, b"d/f")
    assert found.attr is not None
    handle = await volume.fs.open(found.attr.ino, os.O_RDWR)
    assert await handle.read(0, 100) == b"from outside"
    await handle.write(5, b"INSIDE!")
    await handle.close()
    assert (await client.get("/v1/wrk/d/f")).content == b"from INSIDE!"
    await volume.fs.remove_tree(ROOT_INO, b"d")
    assert (await client.get("/v1/wrk/d/f")).status_code == 404
    with pytest.raises(NotFound):
        await volume.fs.lookup(ROOT_INO, b"d")


async def test_replacing_keeps_mode_and_owner(web: Web) -> None:
    fs, client = (await web.drives.volume()).fs, web.client()
    await client.put("/v1/wrk/f", content=b"x")
    attr = await fs.lookup(ROOT_INO, b"f")
    assert (stat.S_IMODE(attr.mode), attr.uid) == (0o644, 0)
    await fs.setattr(attr.ino, SetAttr(mode=0o755, uid=1000, gid=1000))
    await client.put("/v1/wrk/f", content=b"y")
    attr = await fs.lookup(ROOT_INO, b"f")
    assert (stat.S_IMODE(attr.mode), attr.uid, attr.gid) == (0o755, 1000, 1000)


async def test_looking_at_a_drive_that_was_never_used_makes_none(web: Web) -> None:
    client = web.client()
    listing = await client.get("/v1/wrk/")
    assert (listing.status_code, listing.json()["entries"]) == (200, [])
    assert (await client.head("/v1/wrk/")).status_code == 200
    assert (await client.get("/v1/wrk/a")).status_code == 404
    assert (await client.head("/v1/wrk/a")).status_code == 404
    assert (await client.delete("/v1/wrk/a")).status_code == 404
    assert (await client.delete("/v1/wrk/")).status_code == 400
    assert web.drives.volumes == {}
    assert (await client.put("/v1/wrk/a", content=b"x")).status_code == 201
    assert len(web.drives.volumes) == 1
