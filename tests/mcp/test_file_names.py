"""Names that are not UTF-8 in every listing: valid Unicode, and a form that leads back to them."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote_to_bytes

import pytest

from tests.harness.http.mcp import talk
from tests.harness.http.web import ALICE

if TYPE_CHECKING:
    from pathlib import Path

    from tests.harness.http.web import Web

NAMES = sorted([b"caf\xe9", b"\xff\xfe", b"\xed\xa0\x80", b"a\xf0\x9f", b"100%E9", "é".encode()])
"""A surrogate in UTF-8 and a character that is cut off are not UTF-8 either."""


def strictly(text: bytes) -> dict[str, Any]:
    """JSON by parsers that are strict: Python on valid UTF-8 alone, and jq."""
    document: dict[str, Any] = json.loads(text.decode("utf-8"))
    json.dumps(document, ensure_ascii=False).encode("utf-8")  # fails for a lone surrogate
    again = subprocess.run(["jq", "-c", "."], input=text, capture_output=True, check=True)
    assert json.loads(again.stdout) == document
    return document


def location(entry: dict[str, Any], key: str = "name") -> str:
    """What a client puts into a URL."""
    encoded: str = entry.get(f"encoded_{key}") or quote(entry[key])
    return encoded


@pytest.mark.parametrize("place", ["", "d%FF/"])
async def test_http_listings_lead_to_their_files(web: Web, place: str) -> None:
    client = web.client()
    for name in NAMES:
        await client.put(f"/v1/wrk/{place}{quote(name)}", content=name)
    listing = strictly((await client.get(f"/v1/wrk/{place}")).content)
    assert len(listing["entries"]) == len(NAMES)
    directory = location(listing, "path").rstrip("/")
    for entry, name in zip(listing["entries"], NAMES, strict=True):
        assert ("encoded_name" in entry) == ("\ufffd" in entry["name"])
        assert unquote_to_bytes(location(entry)) == name
        answer = await client.get(f"/v1/wrk{directory}/{location(entry)}")
        assert (answer.status_code, answer.content) == (200, name)
    missing = await client.get(f"/v1/wrk/{place}missing%FE")
    assert missing.status_code == 404
    strictly(missing.content)


async def test_mcp_lists_and_tools_take_names_of_the_drive(web: Web) -> None:
    client = web.client()
    async with talk(web) as plane:
        for name in NAMES:
            path = quote(name)
            written = await plane.call("wrk_write", path=path, data=path, encoded=True)
            assert written["created"] is True
            assert (await client.get(f"/v1/wrk/{path}")).text == path
        entries = (await plane.call("wrk_list"))["entries"]
        for entry, name in zip(entries, NAMES, strict=True):
            path = location(entry)
            assert unquote_to_bytes(path) == name
            read = await plane.call("wrk_read", path=path, encoded=True)
            assert read["data"] == quote(name)
            await plane.call("wrk_delete", path=path, encoded=True)
        assert (await plane.call("wrk_list"))["entries"] == []
        strictly(json.dumps(entries).encode())


async def test_mcp_lists_and_reads_files_of_a_box(web: Web, tmp_path: Path) -> None:
    await web.operations.boxes.up(ALICE, "dev")
    async with talk(web) as plane:
        for name in NAMES:
            path = f"{tmp_path}/{quote(name)}"
            await plane.call("box_write", box="dev", path=path, data="x", encoded=True)
        listed = await plane.call("box_read", box="dev", path=str(tmp_path))
        entries = listed["entries"]
        assert sorted(unquote_to_bytes(location(entry)) for entry in entries) == NAMES
        strictly(json.dumps(entries).encode())
        for entry in entries:
            path = f"{tmp_path}/{location(entry)}"
            read = await plane.call("box_read", box="dev", path=path, encoded=True)
            assert read["data"] == "x"


async def test_an_answer_never_repeats_half_of_a_surrogate_pair(web: Web) -> None:
    async with talk(web) as plane:
        await plane.send('{"jsonrpc": "2.0", "id": "\\ud800", "method": "ping"}')
        refused = await plane.answer(None)
    assert refused["error"]["code"] == -32600
