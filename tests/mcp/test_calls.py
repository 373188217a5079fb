"""Calls that take their time: side by side, shown as they go on, cancelled; and pushes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import psutil

from boxd.mcp.sessions import watch
from boxd.mcp.sessions.session import MAX_CALLS
from tests.harness.http.mcp import Talk, talk
from tests.harness.http.web import ALICE, BOB
from tests.harness.wait import until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pytest

    from boxd.model.canvas import Canvas
    from boxd.principal import Principal
    from tests.harness.http.web import Web


def _exec(command: str, **meta: object) -> dict[str, Any]:
    return {
        "name": "box_exec",
        "arguments": {"box": "dev", "cmd": command},
        **({"_meta": meta} if meta else {}),
    }


async def _begun(client: Talk, tmp_path: Path, **meta: object) -> tuple[int, psutil.Process]:
    """A call under way, and the process that it runs."""
    pid = tmp_path / "pid"
    command = f"echo $$ > {pid}.new; mv {pid}.new {pid}; exec sleep 1000"
    number = await client.begin("tools/call", _exec(command, **meta))
    await until(pid.exists)
    return number, psutil.Process(int(pid.read_text()))


async def test_a_cancelled_call_ends_its_command_and_is_not_answered(
    web: Web, tmp_path: Path
) -> None:
    async with talk(web) as client:
        await client.call("box_spawn", spec="dev")
        number, process = await _begun(client, tmp_path)
        await client.notify("notifications/cancelled", {"requestId": number, "reason": "enough"})
        await until(lambda: not process.is_running())
        assert (await client.call("fleet"))["boxes"][0]["attached"] == 0
        assert not client.answer(number).done()


async def test_who_goes_takes_his_calls_along(web: Web, tmp_path: Path) -> None:
    async with talk(web) as client:
        await client.call("box_spawn", spec="dev")
        _, process = await _begun(client, tmp_path)
    await until(lambda: not process.is_running())


async def test_progress_shows_the_last_line(web: Web, tmp_path: Path) -> None:
    """Of lines that come at once one is shown."""
    gate = tmp_path / "gate"
    async with talk(web) as client:
        await client.call("box_spawn", spec="dev")
        command = (
            f"seq -f 'line %g' 200; until [ -e {gate} ]; do sleep 0.02; done;"
            " echo last; exec sleep 1000"
        )
        await client.begin("tools/call", _exec(command, progressToken="t"))
        await client.until_told(lambda: "line 200" in _messages(client))
        gate.touch()
        await client.until_told(lambda: "last" in _messages(client))
    assert _messages(client) == ["line 200", "last"]
    told = [one["params"] for one in client.told if one["method"] == "notifications/progress"]
    assert [(one["progressToken"], one["progress"]) for one in told] == [("t", 1), ("t", 2)]


def _messages(client: Talk) -> list[str]:
    """What was told of progress."""
    progress = (one["params"] for one in client.told if one["method"] == "notifications/progress")
    return [one["message"] for one in progress]


async def test_without_a_token_nothing_is_shown(web: Web) -> None:
    async with talk(web) as client:
        await client.call("box_spawn", spec="dev")
        await client.call("box_exec", box="dev", cmd="echo one; echo two")
        assert [one for one in client.told if one["method"] == "notifications/progress"] == []


async def test_calls_run_side_by_side_up_to_a_number(web: Web) -> None:
    async with talk(web) as client:
        await client.call("box_spawn", spec="dev")
        begun = [
            await client.begin("tools/call", _exec("exec sleep 1000")) for _ in range(MAX_CALLS)
        ]
        text = await client.refusal("box_exec", box="dev", cmd="true")
        assert text == "busy: 32 calls are running on this connection; try again later"
        await client.notify("notifications/cancelled", {"requestId": begun[0]})
        async with asyncio.timeout(30):
            while (await client.result("tools/call", _exec("echo ok")))["isError"]:
                pass


async def test_a_pinned_box_is_removed_only_with_force(web: Web) -> None:
    async with talk(web) as client:
        await client.call("box_spawn", spec="dev")
        await client.call("box_pin", box="dev", why="nightly build")
        text = await client.refusal("box_rm", box="dev")
        assert text.startswith("box dev is pinned until ")
        assert text.endswith(
            " UTC (nightly build). Set force to true to remove it, or call box_pin with for_s 0"
            " first"
        )
        text = await client.refusal("box_spawn", spec="dev+")
        assert text.endswith("Remove the pin first: call box_pin with for_s 0")
        assert len((await client.call("fleet"))["boxes"]) == 1
        await client.call("box_rm", box="dev", force=True)
        assert (await client.call("fleet"))["boxes"] == []


async def test_a_box_is_kept_and_given_back(web: Web) -> None:
    async with talk(web) as client:
        await client.call("box_spawn", spec="dev")
        box = await client.call("box_keep", box="dev")
        assert (box["durable"], box["removal"]) == (True, None)
        box = await client.call("box_keep", box="dev", durable=False)
        assert (box["durable"], box["removal"]["why"]) == (False, "unused")
        assert (await client.call("box_spawn", spec="dev!"))["durable"]
        assert (await client.call("box_spawn", spec="kept", durable=True))["durable"]
        (_, kept) = (await client.call("fleet"))["boxes"]
        assert (kept["name"], kept["durable"]) == ("kept", True)
        text = await client.refusal("box_spawn", spec="dev:debian!")
        assert text.startswith("'!' must follow the name directly")


async def test_a_box_of_a_task_is_durable_only_if_it_stays(web: Web) -> None:
    async with talk(web) as client:
        text = await client.refusal("delegate", prompt="true", spec="job!")
        assert text == (
            "box job cannot be durable, because it is created for one task and removed after it:"
            " omit the '!', or keep the box after the task (keep)"
        )
        assert (await client.call("fleet"))["boxes"] == []
        await client.call("delegate", prompt="true", spec="job!", keep=True)
        (box,) = (await client.call("fleet"))["boxes"]
        assert (box["name"], box["durable"], box["deadline"]) == ("job", True, None)


async def test_a_spec_of_another_profile_is_refused(web: Web) -> None:
    for name in ("lab", "bench"):
        await web.operations.profiles.set_profile(ALICE, name, "debian")
    async with talk(web) as client:
        box = await client.call("box_spawn", spec="dev:lab")
        assert box["profile"] == "lab"
        text = await client.refusal("box_spawn", spec="dev:bench")
        assert "its profile is lab with image 'debian', the spec names profile bench" in text
        assert (await client.call("box_spawn", spec="dev:lab"))["id"] == box["id"]


async def test_changes_of_the_fleet_are_pushed_to_the_owner_alone(web: Web) -> None:
    bobs = await web.new_key(BOB, name="bob")
    scoped = await web.new_key(ALICE, name="scoped", scope="ws1")
    async with (
        talk(web) as acts,
        talk(web) as reads,
        talk(web) as subscribes,
        talk(web) as silent,
        talk(web, bobs) as bob,
        talk(web, scoped) as elsewhere,
    ):
        await reads.result("resources/read", {"uri": "svc://fleet"})
        for client in (subscribes, bob, elsewhere):
            await client.result("resources/subscribe", {"uri": "svc://fleet"})
        await acts.call("box_spawn", spec="dev")
        await reads.until_told(lambda: "svc://fleet" in reads.updates())
        await subscribes.until_told(lambda: "svc://fleet" in subscribes.updates())
        await elsewhere.call("box_spawn", spec="mine")
        await elsewhere.until_told(lambda: "svc://fleet" in elsewhere.updates())
        assert (bob.told, silent.told) == ([], [])
        await subscribes.result("resources/unsubscribe", {"uri": "svc://fleet"})
        count = len(subscribes.updates())
        await acts.call("box_rm", box="dev")
        await reads.until_told(lambda: len(reads.updates()) > 1)
        assert len(subscribes.updates()) in (count, count + 1)


async def test_what_changes_while_it_is_read_is_pushed(
    web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with talk(web) as acts, talk(web) as reads:
        await acts.call("surface_render", id="one", content="1")
        read_canvas = web.operations.canvases.read_canvas

        async def overtaken(p: Principal, canvas_id: str) -> tuple[Canvas, str]:
            found = await read_canvas(p, canvas_id)
            monkeypatch.undo()
            await acts.call("surface_render", id="one", content="2")
            return found

        monkeypatch.setattr(web.operations.canvases, "read_canvas", overtaken)
        uri = "svc://surfaces/one"
        (content,) = (await reads.result("resources/read", {"uri": uri}))["contents"]
        assert content["text"] == "1"
        await reads.until_told(lambda: uri in reads.updates())


async def test_who_reads_what_is_not_there_hears_nothing_of_it(web: Web) -> None:
    async with talk(web) as acts, talk(web) as reads:
        for uri in ("svc://surfaces/one", "svc://surfaces/two"):
            await reads.error("resources/read", {"uri": uri})
        await reads.result("resources/subscribe", {"uri": "svc://surfaces/two"})
        await reads.error("resources/read", {"uri": "svc://surfaces/two"})
        await acts.call("surface_render", id="one", content="1")
        await acts.call("surface_render", id="two", content="2")
        await reads.until_told(lambda: "svc://surfaces/two" in reads.updates())
        assert "svc://surfaces/one" not in reads.updates()


async def test_many_changes_are_one_push(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long they take: the time in which they count as one is not over before it is."""
    watches: list[watch.Watch] = []

    class Held(watch.Watch):
        def __init__(
            self, notify: Callable[[str | None], None], *, subscribe_on_read: bool = False
        ) -> None:
            super().__init__(notify, subscribe_on_read=subscribe_on_read)
            watches.append(self)

    monkeypatch.setattr(watch, "COALESCE_S", 3600)
    monkeypatch.setattr("boxd.mcp.library.bridge.Watch", Held)
    async with talk(web) as client:
        await client.result("resources/subscribe", {"uri": "svc://fleet"})
        for _ in range(5):
            await client.call("box_spawn", spec="dev")
            await client.call("box_pin", box="dev", for_s=60)
        assert client.updates() == []
        (held,) = watches
        await until(lambda: held._timers)
        for uri, timer in list(held._timers.items()):
            timer.cancel()
            held._notify_if_watched(uri)
        await client.until_told(client.updates)
        box = (await client.call("fleet"))["boxes"][0]
        assert client.updates() == ["svc://fleet"]
        assert box["pinned_until"] is not None


async def test_since_2026_a_request_is_a_subscription(web: Web) -> None:
    async with talk(web) as acts, talk(web, modern=True) as client:
        wanted = {"resourceSubscriptions": ["svc://fleet", "svc://none"]}
        number = await client.begin("subscriptions/listen", {"notifications": wanted})
        await client.until_told(lambda: client.told)
        (acknowledged,) = client.told
        assert acknowledged["method"] == "notifications/subscriptions/acknowledged"
        assert acknowledged["params"]["notifications"] == {"resourceSubscriptions": ["svc://fleet"]}
        await acts.call("box_spawn", spec="dev")
        await client.until_told(lambda: client.updates())
        tag = "io.modelcontextprotocol/subscriptionId"
        assert [one["params"]["_meta"][tag] for one in client.told] == [number] * len(client.told)
        await client.notify("notifications/cancelled", {"requestId": number})
        assert (await client.call("fleet"))["boxes"][0]["name"] == "dev"


async def test_questions_are_pushed(web: Web) -> None:
    async with talk(web) as client:
        box = await client.call("box_spawn", spec="dev")
        await client.result("resources/subscribe", {"uri": "svc://asks"})
        question = {"question": "Go on?", "options": []}
        await web.operations.asks.request_of_box(box["id"], "ask", question)
        await client.until_told(lambda: "svc://asks" in client.updates())
        content = (await client.result("resources/read", {"uri": "svc://asks"}))["contents"][0]
        assert "Go on?" in content["text"]
