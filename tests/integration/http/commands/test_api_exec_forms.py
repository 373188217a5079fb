"""Exec with a JSON body, exec with plain text as the answer, and batches."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING

import pytest

from tests.harness.http.commands import marked
from tests.harness.http.errors import error_of
from tests.harness.http.web import ALICE, BOB
from tests.harness.wait import until

if TYPE_CHECKING:
    from tests.harness.http.web import Web

TEXT = {"accept": "text/plain"}


def events_of(text: str) -> list[tuple[str, dict[str, object]]]:
    """The events of a batch, without keepalives."""
    found = []
    for block in text.split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.split("\n") if line and line[0] != ":")
        if lines:
            found.append((lines["event"], json.loads(lines["data"])))
    return found


async def test_a_json_body_carries_command_variables_and_input(web: Web) -> None:
    body = {
        "cmd": 'echo "$NAME"; cat',
        "env": {"NAME": "alice"},
        "stdin": "in\u00e9",
        "timeout_s": 9,
    }
    response = await web.client().post("/v1/exec/web?stream=false", json={**body, "timeout_s": 9})
    assert response.status_code == 200, response.text
    assert base64.b64decode(response.json()["stdout"]).decode() == "alice\nin\u00e9"


@pytest.mark.parametrize(
    ("body", "part"),
    [
        ({}, "missing required field `cmd`"),
        ({"cmd": ""}, "cmd must be a non-empty string"),
        ({"cmd": "x", "env": {"1": "a"}}, "shell identifier"),
        ({"cmd": "x", "env": {"A": 1}}, "Expected `str`"),
        ({"cmd": "x", "timeout_s": 0}, "timeout_s must be"),
        ({"cmd": "x", "stdin": ["a"]}, "Expected `str`"),
        ({"cmd": "x", "command": "y"}, "unknown field `command`"),
    ],
)
async def test_a_wrong_json_body_names_its_mistake(web: Web, body: object, part: str) -> None:
    response = await web.client().post("/v1/exec/web", json=body)
    assert response.status_code == 400
    assert part in error_of(response)
    assert (await web.client().get("/v1/boxes")).json() == []


async def test_plain_text_is_the_output_itself(web: Web) -> None:
    client = web.client()
    command = {"cmd": "echo out; echo err >&2; exit 3"}
    whole = await client.post("/v1/exec/web?stream=false", json=command, headers=TEXT)
    assert (whole.status_code, whole.text) == (200, "out\nerr\n")
    assert whole.headers["x-exit-code"] == "3"
    assert whole.headers["content-type"] == "text/plain; charset=utf-8"
    streamed = await client.post("/v1/exec/web", json=command, headers=TEXT)
    assert sorted(streamed.text.splitlines()) == ["err", "out"]
    large = {"cmd": "head -c 3000000 /dev/zero"}
    zeros = await client.post("/v1/exec/web?stream=false", json=large, headers=TEXT)
    assert zeros.content == bytes(3_000_000)
    both = {"accept": "text/plain, application/json"}
    document = await client.post("/v1/exec/web?stream=false", json=command, headers=both)
    assert document.json()["exit_code"] == 3


async def test_a_batch_runs_in_all_boxes_and_reports_each(web: Web) -> None:
    body = {"boxes": ["one", "two", "we_b"], "cmd": "cat; exit 4", "stdin": "hi"}
    response = await web.client().post("/v1/batch/exec", json=body)
    assert response.status_code == 200
    events = events_of(response.text)
    assert events[-1] == ("done", {})
    outputs = {
        data["box"]: base64.b64decode(str(data["data"])).decode()
        for name, data in events
        if name == "stdout"
    }
    assert outputs == {"one": "hi", "two": "hi"}
    assert {data["box"]: data["code"] for name, data in events if name == "exit"} == {
        "one": 4,
        "two": 4,
    }
    (failure,) = [data for name, data in events if name == "failed"]
    assert (failure["box"], failure["status"]) == ("we_b", 400)
    assert "is not valid" in str(failure["error"])


@pytest.mark.parametrize(
    ("body", "part"),
    [
        ({"boxes": [], "cmd": "x"}, "length >= 1"),
        ({"boxes": ["a"] * 33, "cmd": "x"}, "length <= 32"),
        ({"boxes": ["a", "a"], "cmd": "x"}, "twice"),
        ({"boxes": ["a"]}, "missing required field `cmd`"),
        ({"boxes": "a", "cmd": "x"}, "Expected `array`"),
        ({"boxes": ["a"], "cmd": "x", "env": {"A=B": ""}}, "shell identifier"),
    ],
)
async def test_a_wrong_batch_is_refused(web: Web, body: object, part: str) -> None:
    response = await web.client().post("/v1/batch/exec", json=body)
    assert response.status_code == 400
    assert part in error_of(response)


async def test_a_client_that_leaves_ends_all_commands_of_its_batch(web: Web) -> None:
    reader, writer = await web.connect()
    command = {"boxes": ["one", "two"], "cmd": "echo up; sleep 1000", "env": {"EXEC_MARK": "batch"}}
    body = json.dumps(command).encode()
    head = f"POST /v1/batch/exec HTTP/1.1\r\nHost: x\r\nX-Api-Key: {web.key}\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    await reader.readuntil(b"event: stdout")
    await reader.readuntil(b"event: stdout")
    assert marked("batch")
    writer.transport.abort()
    await until(lambda: not marked("batch"))
    await until(lambda: web.lifecycle.attachments.held() == set())
    assert len(await web.operations.boxes.list_boxes(ALICE)) == 2
    assert await web.operations.boxes.list_boxes(BOB) == []
