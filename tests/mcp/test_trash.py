"""The tools for removed files of a drive."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.harness.http.mcp import talk

if TYPE_CHECKING:
    from tests.harness.http.web import Web


async def test_a_removed_file_is_listed_and_restored(web: Web) -> None:
    (await web.drives.volume()).meta.trash_seconds = 3600
    async with talk(web) as client:
        for path in ("a/f", "a/g"):
            await client.call("wrk_write", path=path, data="text")
        await client.call("wrk_delete", path="a")
        first = await client.call("wrk_trash", limit=2)
        rest = await client.call("wrk_trash", limit=2, cursor=first["next"])
        paths = [one["path"] for one in (*first["entries"], *rest["entries"])]
        assert sorted(paths) == ["/a", "/a/f", "/a/g"]
        assert "next" not in rest
        one = await client.call("wrk_trash", path="a/f")
        assert [entry["path"] for entry in one["entries"]] == ["/a/f"]
        restored = await client.call("wrk_restore", path="a")
        assert (restored["path"], restored["files"], restored["directories"]) == ("/a", 2, 1)
        assert (await client.call("wrk_read", path="a/f"))["data"] == "text"
        assert (await client.call("wrk_trash"))["entries"] == []


async def test_names_of_other_bytes(web: Web) -> None:
    (await web.drives.volume()).meta.trash_seconds = 3600
    async with talk(web) as client:
        await client.call("wrk_write", path="%FF", data="text", encoded=True)
        await client.call("wrk_delete", path="%FF", encoded=True)
        (entry,) = (await client.call("wrk_trash", path="%FF", encoded=True))["entries"]
        assert entry["encoded_path"] == "/%FF"
        restored = await client.call("wrk_restore", path=entry["encoded_path"], encoded=True)
        assert restored["encoded_path"] == "/%FF"


async def test_refusals(web: Web) -> None:
    (await web.drives.volume()).meta.trash_seconds = 3600
    async with talk(web) as client:
        await client.call("wrk_write", path="f", data="old")
        await client.call("wrk_delete", path="f")
        await client.call("wrk_write", path="f", data="new")
        assert "already exists" in await client.refusal("wrk_restore", path="f")
        assert "not both" in await client.refusal("wrk_restore")
        assert "not both" in await client.refusal("wrk_restore", path="f", number=1)
        assert "number must be at least 1" in await client.refusal("wrk_restore", number=0)
        assert "no such entry" in await client.refusal("wrk_restore", path="none")
        assert "'none' does not exist" in await client.refusal("wrk_restore", path="f", to="none/f")
        assert "cursor is not valid" in await client.refusal("wrk_trash", cursor="x")
        assert "limit must be at most 1000" in await client.refusal("wrk_trash", limit=1001)
        assert (await client.call("wrk_read", path="f"))["data"] == "new"
