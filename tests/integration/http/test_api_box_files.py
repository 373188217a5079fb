"""Files of boxes over HTTP. Boxes of this fixture are local processes, so paths are the host's."""

from __future__ import annotations

import asyncio
import os
import stat
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest

from tests.harness.http.errors import error_of
from tests.harness.http.web import ALICE, BOB
from tests.harness.wait import until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.harness.http.web import Web


@pytest.fixture
async def place(web: Web, tmp_path: Path) -> str:
    """The URL of a directory in a box."""
    await web.operations.boxes.up(ALICE, "web")
    return f"/v1/boxes/web/files{tmp_path}"


async def test_a_file_is_written_read_listed_and_removed(
    web: Web, place: str, tmp_path: Path
) -> None:
    client = web.client()
    content = os.urandom(3_000_000)
    made = await client.put(f"{place}/new/dir/data.bin?mode=0600", content=content)
    assert made.status_code == 201, made.text
    path = tmp_path / "new/dir/data.bin"
    assert path.read_bytes() == content
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    got = await client.get(f"{place}/new/dir/data.bin")
    assert (got.status_code, got.content) == (200, content)
    again = await client.put(f"{place}/new/dir/data.bin", content=b"short")
    assert again.status_code == 204
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(tmp_path / "new/dir") == ["data.bin"]
    listing = (await client.get(f"{place}/new/dir/")).json()
    (entry,) = listing["entries"]
    assert (entry["name"], entry["size"], entry["mode"]) == ("data.bin", 5, "0600")
    assert (await client.delete(f"{place}/new")).status_code == 204
    assert not (tmp_path / "new").exists()
    assert (await client.delete(f"{place}/new")).status_code == 404


async def test_ranges_and_heads(web: Web, place: str, tmp_path: Path) -> None:
    (tmp_path / "digits").write_bytes(b"0123456789")
    client = web.client()
    part = await client.get(f"{place}/digits", headers={"range": "bytes=2-4"})
    assert (part.status_code, part.content) == (206, b"234")
    assert part.headers["content-range"] == "bytes 2-4/10"
    head = await client.head(f"{place}/digits")
    assert (head.status_code, head.headers["content-length"], head.content) == (200, "10", b"")
    beyond = await client.get(f"{place}/digits", headers={"range": "bytes=10-"})
    assert (beyond.status_code, beyond.headers["content-range"]) == (416, "bytes */10")
    saved = await client.get(f"{place}/digits?download")
    assert "digits" in saved.headers["content-disposition"]


async def test_odd_names_pass_unchanged(web: Web, place: str, tmp_path: Path) -> None:
    client = web.client()
    for name in (b"a b", b"%41", b"\xff\xfe", "é".encode(), b"new\nline"):
        made = await client.put(f"{place}/{quote(name)}", content=name)
        assert made.status_code == 201, name
        assert (tmp_path / os.fsdecode(name)).read_bytes() == name
        assert (await client.get(f"{place}/{quote(name)}")).content == name
    listing = (await client.get(f"{place}/")).json()
    assert [entry.get("encoded_name") for entry in listing["entries"]].count("%FF%FE") == 1


async def test_what_is_no_file_is_refused(web: Web, place: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "dir").mkdir()
    (tmp_path / "file").write_bytes(b"x")
    client = web.client()
    assert (await client.get(f"{place}/pipe")).status_code == 400
    assert (await client.put(f"{place}/dir", content=b"x")).status_code == 409
    assert (await client.put(f"{place}/file/below", content=b"x")).status_code in (400, 409)
    assert (await client.put(f"{place}/file/")).status_code == 409
    assert (await client.put(f"{place}/new/", content=b"x")).status_code == 400
    assert (await client.put(f"{place}/new/")).status_code == 201
    assert (await client.put(f"{place}/new/")).status_code == 204
    assert (await client.get(f"{place}/a%00b")).status_code == 400
    for mode in ("8", "", "77777", "0644&mode=0600", "rw"):
        response = await client.put(f"{place}/x?mode={mode}", content=b"x")
        assert response.status_code == 400, mode
    assert not (tmp_path / "x").exists()


async def test_an_upload_that_is_cut_changes_nothing(web: Web, place: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"old")
    _, writer = await web.connect()
    head = f"PUT {place}/file HTTP/1.1\r\nHost: x\r\nX-Api-Key: {web.key}\r\n"
    writer.write(head.encode() + b"Content-Length: 1000\r\n\r\n" + b"new" * 10)
    await until(lambda: len(os.listdir(tmp_path)) == 2)
    writer.close()
    await until(lambda: os.listdir(tmp_path) == ["file"])
    assert (tmp_path / "file").read_bytes() == b"old"
    await until(lambda: web.lifecycle.attachments.held() == set())


async def test_a_client_that_leaves_detaches_the_box(web: Web, place: str, tmp_path: Path) -> None:
    with (tmp_path / "large").open("wb") as file:
        file.truncate(1 << 30)
    reader, writer = await web.connect()
    writer.write(f"GET {place}/large HTTP/1.1\r\nHost: x\r\nX-Api-Key: {web.key}\r\n\r\n".encode())
    assert (await asyncio.wait_for(reader.readline(), 20)).startswith(b"HTTP/1.1 200")
    assert web.lifecycle.attachments.held() != set()
    writer.transport.abort()
    await until(lambda: web.lifecycle.attachments.held() == set())


async def test_another_owner_finds_no_box(web: Web, place: str) -> None:
    client = web.client(key=await web.new_key(BOB))
    response = await client.get(f"{place}/file")
    assert response.status_code == 404
    assert error_of(response).startswith("no box 'web'")
