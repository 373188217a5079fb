"""The tool `delegate`, as a client sees it; what is behind it stands in test_delegate.py beside."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING

from boxd.secret import Secret
from tests.harness.http.mcp import talk
from tests.harness.http.web import ALICE
from tests.harness.wait import until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.harness.http.web import Web

TOKEN = "canary-agent-token-0123456789"


async def _set_agent(web: Web, command: str) -> None:
    await web.operations.agents.set_agent(
        ALICE, command=command, env="TOKEN", output="jsonl", token=Secret(TOKEN)
    )


async def test_a_command_is_delegated(web: Web) -> None:
    async with talk(web) as client:
        done = await client.call("delegate", prompt="echo ok; echo no >&2; exit 3")
        assert (done["exit_code"], done["stdout"], done["stderr"]) == (3, "ok\n", "no\n")
        assert (done["encoding"], done["truncated"], "text" in done) == ("utf-8", False, False)
        await client.call("box_spawn", spec="dev")
        done = await client.call("delegate", prompt="printf '\\377'", box="dev")
        assert (done["box"], base64.b64decode(done["stdout"])) == ("dev", b"\xff")
        kept = await client.call("delegate", prompt="true", spec="kept", keep=True)
        assert kept["box"] == "kept"
        refs = {box["ref"] for box in (await client.call("fleet"))["boxes"]}
        assert {"dev", "kept"} <= refs


async def test_a_task_is_delegated_to_the_agent(web: Web) -> None:
    command = 'cat; echo; echo "$TOKEN"; echo \'{"result": "done"}\'; echo $TOKEN >&2; exit 4'
    await _set_agent(web, command)
    async with talk(web) as client:
        done = await client.call("delegate", prompt="do it", agent=True, env={"A": "b"})
        assert (done["text"], done["exit_code"], done["stderr"]) == ("done", 4, "***\n")
        assert "stdout" not in done
        assert TOKEN not in json.dumps(done)


async def test_lines_of_the_agent_are_progress(web: Web) -> None:
    await _set_agent(web, 'echo "working with $TOKEN"; exec sleep 1000')
    async with talk(web) as client:
        arguments = {"prompt": "x", "agent": True}
        meta = {"progressToken": "t"}
        await client.begin(
            "tools/call", {"name": "delegate", "arguments": arguments, "_meta": meta}
        )
        await client.until_told(
            lambda: any(
                one["params"].get("message") == "working with ***"
                for one in client.told
                if one["method"] == "notifications/progress"
            )
        )
    assert TOKEN not in json.dumps(client.told)


async def test_a_cancelled_task_leaves_no_box(web: Web, tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    async with talk(web) as client:
        number = await client.begin(
            "tools/call",
            {"name": "delegate", "arguments": {"prompt": f"touch {begun}; sleep 1000"}},
        )
        await until(begun.exists)
        await client.notify("notifications/cancelled", {"requestId": number})
        with web.operations.visits.changes(ALICE) as heard:
            while (await client.call("fleet"))["boxes"]:
                await heard.next()


async def test_what_is_refused_says_why(web: Web) -> None:
    async with talk(web) as client:
        text = await client.refusal("delegate", prompt="x", agent=True)
        assert text == "no agent is set; call agent_set"
        await _set_agent(web, "cat")
        text = await client.refusal("delegate", prompt="x", agent=True, env={"TOKEN": "mine"})
        assert "TOKEN is reserved" in text
        text = await client.refusal("delegate", prompt="x", box="dev", spec="dev")
        assert "not both" in text
        text = await client.refusal("delegate", prompt="x", box="dev")
        assert text == "no box 'dev'; call fleet"
        key = await web.new_key(ALICE, scope="ws1")
        async with talk(web, key) as confined:
            text = await confined.refusal("delegate", prompt="x", agent=True)
            assert text == "you cannot drive an agent: this credential is confined to workspace ws1"
            assert (await confined.call("delegate", prompt="echo in"))["stdout"] == "in\n"


async def test_an_earlier_question_is_waited_for_again(web: Web) -> None:
    async with talk(web) as client:
        asked = await client.call("ask", question="Go on?")
        assert asked["state"] == "open"
        number = await client.begin(
            "tools/call", {"name": "ask", "arguments": {"id": asked["id"], "wait_s": 600}}
        )
        await client.call("answer", id=asked["id"], answer="yes")
        result = (await client.answer(number))["result"]["structuredContent"]
        assert result == {"id": asked["id"], "state": "answered", "answer": "yes"}
        for arguments in ({}, {"question": "?", "id": asked["id"]}):
            assert "give a question" in await client.refusal("ask", **arguments)
