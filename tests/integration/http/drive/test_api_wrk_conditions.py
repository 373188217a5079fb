"""Conditional requests on the drive: what was checked is what is answered, replaced or removed."""

from __future__ import annotations

import asyncio
import os
from email.utils import formatdate
from typing import TYPE_CHECKING

import pytest

from tests.harness.http.drives import real_drive
from tests.harness.http.errors import error_of
from wrkfs.fs import Filesystem
from wrkfs.types import ROOT_INO, SetAttr

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.harness.http.web import Web
    from wrkfs.config import VolumeConfig
    from wrkfs.types import Ino

CHANGED = 1_600_000_000


async def dated(web: Web, content: bytes = b"x") -> str:
    """`f`, last changed at CHANGED; its tag."""
    client = web.client()
    await client.put("/v1/wrk/f", content=content)
    fs = (await web.drives.volume()).fs
    attr = await fs.lookup(ROOT_INO, b"f")
    await fs.setattr(attr.ino, SetAttr(mtime_ns=CHANGED * 1_000_000_000 + 999))
    return str((await client.head("/v1/wrk/f")).headers["etag"])


def at(seconds: int) -> str:
    """An HTTP date, so many seconds after CHANGED."""
    return formatdate(CHANGED + seconds, usegmt=True)


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        ({"if-match": "*"}, 200),
        ({"if-match": "TAG"}, 200),
        ({"if-match": '"other", TAG'}, 200),
        ({"if-match": '"other"'}, 412),
        ({"if-match": "W/TAG"}, 412),
        ({"if-match": '"other"', "if-none-match": "TAG"}, 412),
        ({"if-match": "TAG", "if-none-match": "TAG"}, 304),
        ({"if-match": "TAG", "range": "bytes=0-1"}, 206),
        ({"if-match": '"other"', "range": "bytes=0-1"}, 412),
        ({"if-none-match": "TAG", "range": "bytes=0-1"}, 304),
        ({"if-none-match": '"other"', "range": "bytes=0-1"}, 206),
        ({"if-none-match": "*"}, 304),
        ({"if-modified-since": at(0)}, 304),
        ({"if-modified-since": at(1)}, 304),
        ({"if-modified-since": at(-1)}, 200),
        ({"if-modified-since": at(1), "if-none-match": '"other"'}, 200),
        ({"if-modified-since": at(-1), "if-none-match": "TAG"}, 304),
        ({"if-modified-since": "yesterday"}, 200),
        ({"if-modified-since": "Thu, 01 Jan 99999 00:00:00 GMT"}, 200),
        ({"if-unmodified-since": at(0)}, 200),
        ({"if-unmodified-since": at(-1)}, 412),
        ({"if-unmodified-since": at(-1), "if-match": "TAG"}, 200),
        ({"if-unmodified-since": at(0), "if-modified-since": at(0)}, 304),
        ({"if-range": "TAG", "range": "bytes=1-1"}, 206),
        ({"if-range": '"other"', "range": "bytes=1-1"}, 200),
        ({"if-range": at(0), "range": "bytes=1-1"}, 200),
    ],
)
@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_conditions_of_reading(
    web: Web, method: str, lines: dict[str, str], status: int
) -> None:
    tag = await dated(web, b"content")
    headers = {name: value.replace("TAG", tag) for name, value in lines.items()}
    answer = await web.client().request(method, "/v1/wrk/f", headers=headers)
    # A range is for GET alone.
    assert answer.status_code == (200 if method == "HEAD" and status == 206 else status)
    if status == 412 and method == "GET":
        assert tag in error_of(answer)
    else:
        assert answer.content == (b"" if method == "HEAD" or status == 304 else answer.content)


@pytest.mark.parametrize("name", ["if-modified-since", "if-unmodified-since"])
@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
async def test_a_date_is_given_once(web: Web, method: str, name: str) -> None:
    await dated(web)
    headers = [(name, at(0)), (name, at(1)), ("authorization", f"Bearer {web.key}")]
    answer = await web.client().request(method, "/v1/wrk/f", headers=headers)
    assert answer.status_code == 400


async def test_what_is_not_there_is_404_whatever_the_condition(web: Web) -> None:
    client = web.client()
    await client.put("/v1/wrk/f", content=b"x")
    for lines in ({"if-match": "*"}, {"if-match": '"1-1"'}, {"if-none-match": "*"}):
        assert (await client.get("/v1/wrk/absent", headers=lines)).status_code == 404
        assert (await client.delete("/v1/wrk/absent", headers=lines)).status_code == 404


@pytest.mark.parametrize(
    ("lines", "allowed"),
    [
        ({"if-unmodified-since": at(0)}, True),
        ({"if-unmodified-since": at(-1)}, False),
        ({"if-unmodified-since": at(-1), "if-match": "TAG"}, True),
        ({"if-unmodified-since": at(0), "if-match": '"other"'}, False),
        ({"if-none-match": "*"}, False),
        ({"if-none-match": '"other"'}, True),
        ({"if-none-match": "TAG"}, False),
        ({"if-none-match": "W/TAG"}, False),
        ({"if-match": "*"}, True),
    ],
)
async def test_conditions_of_changing(web: Web, lines: dict[str, str], allowed: bool) -> None:
    for method in ("PUT", "DELETE"):
        tag = await dated(web)
        headers = {name: value.replace("TAG", tag) for name, value in lines.items()}
        answer = await web.client().request(method, "/v1/wrk/f", headers=headers)
        assert answer.status_code == (204 if allowed else 412)


async def test_a_change_that_the_condition_allows_does_not_fail_it(web: Web) -> None:
    client = web.client()
    await client.put("/v1/wrk/f", content=b"old")
    for headers in ({"if-match": "*"}, {"if-none-match": '"other"'}):
        begun, go_on = asyncio.Event(), asyncio.Event()

        async def body(begun: asyncio.Event, go_on: asyncio.Event) -> AsyncIterator[bytes]:
            yield b"la"
            begun.set()
            await go_on.wait()
            yield b"te"

        late = asyncio.create_task(
            client.put("/v1/wrk/f", content=body(begun, go_on), headers=headers)
        )
        await asyncio.wait_for(begun.wait(), 10)
        await web.client().put("/v1/wrk/f", content=b"between")
        go_on.set()
        assert (await late).status_code == 204
        assert (await client.get("/v1/wrk/f")).content == b"late"


async def test_a_file_that_appears_meanwhile_is_looked_at(web: Web) -> None:
    client = web.client()
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def body() -> AsyncIterator[bytes]:
        yield b"la"
        begun.set()
        await go_on.wait()
        yield b"te"

    await client.put("/v1/wrk/known", content=b"known")
    tag = (await client.head("/v1/wrk/known")).headers["etag"]
    late = asyncio.create_task(
        client.put("/v1/wrk/f", content=body(), headers={"if-none-match": tag})
    )
    await asyncio.wait_for(begun.wait(), 10)
    fs = (await web.drives.volume()).fs
    await fs.rename(ROOT_INO, b"known", ROOT_INO, b"f")
    go_on.set()
    assert (await late).status_code == 412
    assert (await client.get("/v1/wrk/f")).content == b"known"


async def test_a_conditional_delete_beside_a_put(volume: VolumeConfig, web: Web) -> None:
    """Whichever is first, the answers say so."""
    await real_drive(web, volume)
    client = web.client()
    for round_ in range(40):
        old = await client.put("/v1/wrk/f", content=b"old %d" % round_)
        put, gone = await asyncio.gather(
            client.put("/v1/wrk/f", content=b"new %d" % round_),
            client.delete("/v1/wrk/f", headers={"if-match": old.headers["etag"]}),
        )
        assert (put.status_code, gone.status_code) in ((201, 204), (204, 412))
        assert (await client.get("/v1/wrk/f")).content == b"new %d" % round_


async def test_a_conditional_delete_never_removes_another_version(
    volume: VolumeConfig, web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is replaced after the condition was checked, before the removal."""
    fs = await real_drive(web, volume)
    remove_tree = fs.remove_tree
    other = await Filesystem.connect(volume, kind="http")

    async def after_another_put(
        parent: Ino, name: bytes, *, if_version: tuple[Ino, int] | None = None
    ) -> None:
        handle = await other.open((await other.lookup(parent, name)).ino, os.O_WRONLY)
        await handle.write(0, b"new")
        await handle.close()
        await remove_tree(parent, name, if_version=if_version)

    client = web.client()
    try:
        tag = (await client.put("/v1/wrk/f", content=b"old")).headers["etag"]
        monkeypatch.setattr(fs, "remove_tree", after_another_put)
        gone = await client.delete("/v1/wrk/f", headers={"if-match": tag})
        assert gone.status_code == 412
        assert (await client.get("/v1/wrk/f")).content == b"new"
    finally:
        await other.close()
