"""Every tool before real boxes and drives, as a client sees it."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING

import pytest

from boxd.mcp.tools.drive import drive
from boxd.mcp.tools.registry import TOOLS
from boxd.workspaces.drive import PIECE, Condition, Drive, Written
from tests.harness.http.mcp import talk
from tests.harness.http.web import ALICE

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from tests.harness.http.web import Web

    Body = Callable[[], Awaitable[bytes | None]]


async def test_all_tools_are_listed_with_their_schemas(web: Web) -> None:
    async with talk(web) as client:
        listed = (await client.result("tools/list"))["tools"]
    assert [one["name"] for one in listed] == [tool.name for tool in TOOLS]
    for one in listed:
        assert one["inputSchema"]["additionalProperties"] is False
        assert one["outputSchema"]["type"] == "object"
        assert one["title"] == one["annotations"]["title"]
        assert set(one["annotations"]) == {
            "title",
            "readOnlyHint",
            "destructiveHint",
            "idempotentHint",
            "openWorldHint",
        }


async def test_a_box_is_made_used_and_removed(web: Web) -> None:
    async with talk(web) as client:
        made = await client.call("box_spawn", spec="dev")
        assert (made["name"], made["state"], made["created"]) == ("dev", "running", True)
        assert (await client.call("box_spawn", spec="dev"))["created"] is False
        done = await client.call("box_exec", box="dev", cmd="echo ok; echo no >&2; exit 3")
        assert {key: done[key] for key in done if key != "duration_ms"} == {
            "exit_code": 3,
            "stdout": "ok\n",
            "stderr": "no\n",
            "encoding": "utf-8",
            "truncated": False,
        }
        fleet = await client.call("fleet")
        assert [box["id"] for box in fleet["boxes"]] == [made["id"]]
        assert fleet["quota"]["boxes"]["used"] == 1
        assert await client.call("box_rm", box="dev") == {"removed": made["id"]}
        assert (await client.call("fleet"))["boxes"] == []


async def test_exec_takes_environment_and_input(web: Web) -> None:
    async with talk(web) as client:
        await client.call("box_spawn", spec="dev")
        done = await client.call(
            "box_exec", box="dev", cmd='cat; echo "$WHO"', env={"WHO": "me"}, stdin="given\n"
        )
        assert done["stdout"] == "given\nme\n"
        done = await client.call("box_exec", box="dev", cmd="printf '\\377'")
        assert (done["encoding"], base64.b64decode(done["stdout"])) == ("base64", b"\xff")
        done = await client.call("box_exec", box="dev", cmd="sleep 60", timeout_s=1)
        assert done["exit_code"] == 124


async def test_of_long_output_head_and_tail_are_kept(web: Web) -> None:
    async with talk(web) as client:
        await client.call("box_spawn", spec="dev")
        done = await client.call("box_exec", box="dev", cmd="seq 1 100000", max_output=1000)
        assert done["truncated"] is True
        assert done["stdout"].startswith("1\n2\n3\n")
        assert done["stdout"].endswith("99999\n100000\n")
        assert "bytes left out]" in done["stdout"]
        assert len(done["stdout"]) < 1100


async def test_exec_never_makes_a_box(web: Web) -> None:
    async with talk(web) as client:
        refusal = await client.refusal("box_exec", box="dev", cmd="true")
        assert refusal == "no box 'dev'; call fleet"
        assert (await client.call("fleet"))["boxes"] == []


async def test_files_of_a_box(web: Web, tmp_path: Path) -> None:
    async with talk(web) as client:
        await client.call("box_spawn", spec="dev")
        path = f"{tmp_path}/new/deep/file.txt"
        wrote = await client.call("box_write", box="dev", path=path, data="hällo\n")
        assert wrote == {"path": path, "size": 7, "created": True}
        assert (tmp_path / "new/deep/file.txt").stat().st_mode & 0o7777 == 0o644
        read = await client.call("box_read", box="dev", path=path)
        assert (read["data"], read["encoding"], read["eof"]) == ("hällo\n", "utf-8", True)
        part = await client.call("box_read", box="dev", path=path, offset=0, limit=2)
        assert (part["data"], part["eof"]) == ("h", False)
        added = await client.call("box_write", box="dev", path=path, data="more", append=True)
        assert added == {"path": path, "size": 11, "created": False}
        await client.call("box_write", box="dev", path=path, data="#!", mode="0755")
        await client.call(
            "box_write",
            box="dev",
            path=path,
            data=base64.b64encode(b"\xff").decode(),
            encoding="base64",
        )
        assert (tmp_path / "new/deep/file.txt").stat().st_mode & 0o7777 == 0o755
        read = await client.call("box_read", box="dev", path=path)
        assert (read["data"], read["encoding"]) == ("/w==", "base64")
        listing = await client.call("box_read", box="dev", path=f"{tmp_path}/new")
        assert [(one["name"], one["is_dir"]) for one in listing["entries"]] == [("deep", True)]
        assert [one.name for one in (tmp_path / "new/deep").iterdir()] == ["file.txt"]


async def test_a_part_that_is_less_than_a_character_is_given_as_bytes(
    web: Web, tmp_path: Path
) -> None:
    (tmp_path / "euro").write_text("€uro")
    async with talk(web) as client:
        await client.call("box_spawn", spec="dev")
        await client.call("wrk_write", path="euro", data="€uro")
        for tool, more in (
            ("box_read", {"box": "dev", "path": f"{tmp_path}/euro"}),
            ("wrk_read", {"path": "euro"}),
        ):
            read = await client.call(tool, limit=1, **more)
            assert (read["data"], read["encoding"], read["eof"]) == ("4g==", "base64", False)


async def test_files_of_a_box_that_cannot_be_had(web: Web, tmp_path: Path) -> None:
    async with talk(web) as client:
        await client.call("box_spawn", spec="dev")
        text = await client.refusal("box_read", box="dev", path=f"{tmp_path}/none")
        assert text.endswith("no such file or directory")
        text = await client.refusal("box_read", box="dev", path="/dev/zero")
        assert text == "'/dev/zero' is neither a file nor a directory"
        text = await client.refusal("box_write", box="dev", path=str(tmp_path), data="")
        assert text.endswith("exists and is not a file")
        text = await client.refusal("box_write", box="dev", path="x", data="!", encoding="base64")
        assert text == "data is not valid base64; encode it, or set encoding to utf-8"


async def test_the_drive(web: Web) -> None:
    async with talk(web) as client:
        wrote = await client.call("wrk_write", path="a/b.txt", data="one\n")
        assert (wrote["size"], wrote["created"]) == (4, True)
        added = await client.call("wrk_write", path="a/b.txt", data="two\n", append=True)
        assert (added["size"], added["created"]) == (8, False)
        read = await client.call("wrk_read", path="/a/b.txt")
        assert (read["data"], read["eof"], read["etag"]) == ("one\ntwo\n", True, added["etag"])
        text = await client.refusal("wrk_write", path="a/b.txt", data="", if_match=wrote["etag"])
        assert "precondition does not hold" in text
        assert await client.call("wrk_mkdir", path="c/d") == {"path": "c/d", "created": True}
        listing = await client.call("wrk_list")
        assert [one["name"] for one in listing["entries"]] == ["a", "c"]
        assert "next" not in listing
        assert "is a directory" in await client.refusal("wrk_read", path="a")
        assert await client.call("wrk_delete", path="a") == {"path": "a"}
        assert "No such file" in await client.refusal("wrk_read", path="a/b.txt")


async def test_copies_of_trees(web: Web) -> None:
    async with talk(web) as client:
        await client.call("wrk_write", path="src/a.txt", data="old")
        made = await client.call("wrk_snapshot", path="/src", name="monday")
        assert (made["name"], made["path"], made["bytes"]) == ("monday", "/src", 3)
        assert (await client.call("wrk_snapshots"))["snapshots"] == [made]
        await client.call("wrk_write", path="src/a.txt", data="new")
        read = await client.call("wrk_read", path="/.snapshots/monday/a.txt")
        assert read["data"] == "old"
        text = await client.refusal("wrk_write", path="/.snapshots/monday/a.txt", data="new")
        assert "Read-only file system" in text
        text = await client.refusal("wrk_snapshot_restore", name="monday")
        assert text.endswith("exists; remove it, or give another path")
        restored = await client.call("wrk_snapshot_restore", name="monday", replace=True)
        assert restored == {"path": "/src"}
        assert (await client.call("wrk_read", path="src/a.txt"))["data"] == "old"
        assert await client.call("wrk_clone", path="src", to="copy") == {"path": "/copy"}
        assert (await client.call("wrk_read", path="copy/a.txt"))["data"] == "old"
        assert await client.call("wrk_snapshot_remove", name="monday") == {"name": "monday"}
        assert (await client.call("wrk_snapshots"))["snapshots"] == []


async def test_what_is_added_to_is_not_held_in_memory(
    web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with talk(web) as client:
        await client.call("wrk_write", path="log", data="x" * (3 * PIECE))
        sizes: list[int] = []
        put = Drive.put

        async def measured(self: Drive, path: bytes, body: Body, condition: Condition) -> Written:
            async def piece() -> bytes | None:
                if (data := await body()) is not None:
                    sizes.append(len(data))
                return data

            return await put(self, path, piece, condition)

        monkeypatch.setattr(Drive, "put", measured)
        added = await client.call("wrk_write", path="log", data="more", append=True)
        assert (added["size"], added["created"]) == (3 * PIECE + 4, False)
        assert sizes == [PIECE, PIECE, PIECE, 4]
        read = await client.call("wrk_read", path="log", offset=3 * PIECE - 1)
        assert (read["data"], read["etag"]) == ("xmore", added["etag"])


async def test_long_directories_come_in_pages(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drive, "PAGE", 2)
    async with talk(web) as client:
        for name in "abcde":
            await client.call("wrk_write", path=f"many/{name}", data="")
        found, cursor = [], None
        for _ in range(3):
            page = await client.call("wrk_list", path="many", cursor=cursor)
            found.append([one["name"] for one in page["entries"]])
            cursor = page.get("next")
        assert (found, cursor) == ([["a", "b"], ["c", "d"], ["e"]], None)
        text = await client.refusal("wrk_list", path="many", cursor="ü")
        assert text == "cursor is not valid; pass `next` of an earlier wrk_list result"


async def test_workspaces_and_secrets(web: Web) -> None:
    async with talk(web) as client:
        assert await client.call("ws_create", name="api") == {"name": "api"}
        names = [one["name"] for one in (await client.call("ws_list"))["workspaces"]]
        assert names == [None, "api"]
        made = await client.call("secret_set", name="TOKEN", value="hidden", ws="api")
        assert made == {"name": "TOKEN", "tier": "workspace", "created": True}
        await client.call("secret_set", name="OTHER", value="hidden", tier="account")
        listed = (await client.call("secret_list"))["secrets"]
        assert {(one["name"], one["tier"], one["ws"]) for one in listed} == {
            ("TOKEN", "workspace", "api"),
            ("OTHER", "account", None),
        }
        assert "hidden" not in json.dumps([client.told, listed])
        only = (await client.call("secret_list", tier="account"))["secrets"]
        assert [one["name"] for one in only] == ["OTHER"]
        assert await client.call("secret_rm", name="TOKEN", ws="api") == {"name": "TOKEN"}
        await client.call("box_spawn", spec="dev")
        done = await client.call("box_exec", box="dev", cmd='echo "$OTHER"')
        assert done["stdout"] == "hidden\n"
        assert await client.call("ws_rm", name="api") == {"name": "api"}


async def test_names_with_a_dot_are_the_same_tools(web: Web) -> None:
    async with talk(web) as client:
        await client.call("box.spawn", spec="dev")
        assert (await client.call("box.exec", box="dev", cmd="echo ok"))["stdout"] == "ok\n"
        assert (await client.call("wrk.list"))["entries"] == []


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({}, "box_exec: box is missing"),
        ({"box": "dev", "cmd": "true", "timeout_s": 0}, "box_exec: timeout_s must be at least 1"),
        ({"box": "dev", "cmd": "true", "timeout_s": True}, "timeout_s must be a whole number"),
        ({"box": "dev", "cmd": 1}, "box_exec: cmd must be a string"),
        ({"box": "dev", "cmd": "true", "env": {"1": ""}}, "must be a shell identifier"),
        ({"box": "dev", "cmd": "true", "hurry": 1}, "box_exec: unknown arguments"),
    ],
)
async def test_bad_arguments_are_told(web: Web, arguments: dict[str, object], text: str) -> None:
    async with talk(web) as client:
        assert text in await client.refusal("box_exec", **arguments)


async def test_what_is_asked_by_a_box_is_answered(web: Web) -> None:
    async with talk(web) as client:
        box = await client.call("box_spawn", spec="dev")
        question = {"question": "Go on?", "options": ["yes", "no"]}
        asked = await web.operations.asks.request_of_box(box["id"], "ask", question)
        (ask,) = (await client.call("fleet"))["asks"]
        assert (ask["id"], ask["box"], ask["question"]) == (asked["ask"], "dev", "Go on?")
        assert "is not an option" in await client.refusal("answer", id=ask["id"], answer="maybe")
        answered = await client.call("answer", id=ask["id"][:8], answer="yes")
        assert answered == {"id": ask["id"], "state": "answered"}
        state = await web.operations.asks.request_of_box(box["id"], "ask_state", {"ask": ask["id"]})
        assert state == {"state": "answered", "answer": "yes"}


async def test_a_scoped_key_has_its_workspace_and_nothing_else(web: Web) -> None:
    key = await web.new_key(ALICE, scope="ws1")
    async with talk(web) as whole, talk(web, key) as client:
        await whole.call("box_spawn", spec="dev")
        await client.call("box_spawn", spec="dev")
        assert [one["ref"] for one in (await client.call("fleet"))["boxes"]] == ["ws1/dev"]
        names = [one["name"] for one in (await client.call("ws_list"))["workspaces"]]
        assert names == ["ws1"]
        confined = "this credential is confined to workspace ws1"
        assert await client.refusal("wrk_list", ws="ws2") == confined
        assert await client.refusal("box_exec", box="ws2/dev", cmd="true") == confined
        assert confined in await client.refusal("ws_create", name="more")
        assert confined in await client.refusal("ws_rm", name="ws1")
        assert confined in await client.refusal("secret_set", name="A", value="b", tier="account")
        assert confined in await client.refusal("answer", id="1", answer="b")


async def test_a_question_waits_for_its_answer(web: Web) -> None:
    async with talk(web) as asks, talk(web) as answers:
        await answers.result("resources/subscribe", {"uri": "svc://asks"})
        params = {"name": "ask", "arguments": {"question": "Go on?", "wait_s": 600}}
        number = await asks.begin("tools/call", params)
        await answers.until_told(lambda: "svc://asks" in answers.updates())
        (ask,) = (await answers.call("fleet"))["asks"]
        assert (ask["question"], ask["box"]) == ("Go on?", None)
        await answers.call("answer", id=ask["id"], answer="yes")
        found = (await asks.answer(number))["result"]["structuredContent"]
        assert found == {"id": ask["id"], "state": "answered", "answer": "yes"}
        assert (await asks.call("ask", question="And?", options=["a", "b"]))["state"] == "open"


async def test_documents_are_shown_and_are_resources(web: Web) -> None:
    scoped = await web.new_key(ALICE, scope="ws1")
    async with talk(web) as shows, talk(web) as looks, talk(web, scoped) as elsewhere:
        await looks.result("resources/read", {"uri": "svc://surfaces"})
        await elsewhere.result("resources/subscribe", {"uri": "svc://surfaces/plan"})
        made = await shows.call("surface_render", id="plan", content="# Plan", title="The plan")
        assert made == {"uri": "svc://surfaces/plan", "revision": 1}
        await looks.until_told(lambda: "svc://surfaces" in looks.updates())
        lists = "notifications/resources/list_changed"
        await looks.until_told(lambda: lists in [one["method"] for one in looks.told])
        listed = (await looks.result("resources/list"))["resources"]
        assert [one["uri"] for one in listed][-1] == "svc://surfaces/plan"
        (content,) = (await looks.result("resources/read", {"uri": made["uri"]}))["contents"]
        assert (content["text"], content["mimeType"]) == ("# Plan", "text/markdown")
        page = {"id": "plan", "content": "<p>", "mime": "text/html"}
        assert (await shows.call("surface_render", **page))["revision"] == 2
        await looks.until_told(lambda: made["uri"] in looks.updates())
        shown = (await shows.call("surface_list"))["surfaces"]
        assert [(one["id"], one["mime"], one["revision"]) for one in shown] == [
            ("plan", "text/html", 2)
        ]
        assert (await elsewhere.call("surface_list"))["surfaces"] == []
        code, _ = await elsewhere.error("resources/read", {"uri": made["uri"]})
        assert (code, elsewhere.updates()) == (-32002, [])
        assert await shows.call("surface_rm", id="plan") == {"id": "plan"}
        assert (await looks.error("resources/read", {"uri": made["uri"]}))[0] == -32002
        templates = (await looks.result("resources/templates/list"))["resourceTemplates"]
        assert [one["uriTemplate"] for one in templates] == ["svc://surfaces/{id}"]
