"""The buffered form of exec: answers of any size, and what one owner's calls hold together."""

from __future__ import annotations

import asyncio
import base64
import json
from functools import partial
from typing import TYPE_CHECKING

import pytest

from boxd.boxes.limits.budgets import output as output_budget
from boxd.http.routes.commands.buffered import PIECE
from tests.harness.agents.allowances import small_allowances
from tests.harness.http.commands import STREAM, Ran, buffered, header, marked, open_exec, stream
from tests.harness.http.drives import MIB, forget_peak, resident
from tests.harness.http.errors import error_of
from tests.harness.http.web import ALICE, BOB
from tests.harness.wait import until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.harness.http.web import Web

SIZE = 1_000_000
QUERY = "?stream=false"


@pytest.fixture
def allowances(monkeypatch: pytest.MonkeyPatch) -> list[output_budget.Allowance]:
    """Those that are made."""
    return small_allowances(monkeypatch, SIZE)


def zeros(size: int) -> str:
    """A command that says so many bytes."""
    return f"head -c {size} /dev/zero"


def length_of(head: bytes) -> int:
    """The Content-Length of an answer."""
    (line,) = (one for one in head.lower().split(b"\r\n") if one.startswith(b"content-length"))
    return int(line.split(b":")[1])


@pytest.mark.parametrize("size", [1, 2, PIECE - 1, PIECE, PIECE + 1, 2 * PIECE, 5 * PIECE + 2])
async def test_outputs_of_any_size_are_whole(web: Web, size: int) -> None:
    client = web.client()
    for out, err in ((size, 0), (0, size), (size, size + 1)):
        command = f"{zeros(out)}; {zeros(err)} | tr '\\0' x >&2; exit 7"
        ran, _ = await buffered(client, "web", header(command))
        assert ran == Ran(bytes(out), b"x" * err, 7)


async def test_the_largest_answer_takes_little_more_than_its_output(web: Web) -> None:
    """While its client does not read, too."""
    await stream(web.client(), "web", header("true"))
    before = forget_peak()
    reader, writer = await open_exec(web, header(zeros(16 * MIB)), QUERY)
    writer.write(b"0\r\n\r\n")
    head = await reader.readuntil(b"\r\n\r\n")
    length = length_of(head)
    read = 0
    begin = json.dumps({"exit_code": 0, "stdout": ""})[:-2].encode()
    assert await reader.readexactly(len(begin)) == begin
    read += len(begin)
    while read < length:
        read += len(await reader.readexactly(min(PIECE, length - read)))
    grown = resident("VmHWM") - before
    writer.close()
    await writer.wait_closed()
    assert length > 16 * MIB * 4 // 3
    # Encoded whole, and once more as text to send, it took 101 MiB; by pieces 17.
    assert grown < 40 * MIB


async def test_an_owner_with_many_loud_commands_holds_no_more_than_that(
    web: Web, allowances: list[output_budget.Allowance], tmp_path: Path
) -> None:
    client, gate = web.client(), tmp_path / "gate"
    await stream(client, "web", header("true"))
    wait = f"until [ -e {gate} ]; do sleep 0.05; done"
    said = SIZE // 5
    calls = []
    for number in range(1, 4):
        body = header(f"{zeros(said)}; {wait}")
        calls.append(asyncio.create_task(buffered(client, "web", body)))
        await until(partial(_hold, allowances, number * (said - output_budget.ALWAYS)))
    (watched,) = (one for one in allowances if one.taken)
    refused = await client.post(
        f"/v1/exec/web{QUERY}",
        content=header(f"{zeros(2 * said)}; sleep 1000", env={"EXEC_MARK": "loud"}),
        headers=STREAM,
    )
    assert refused.status_code == 429
    assert "stream" in error_of(refused)
    await until(lambda: not marked("loud"))
    assert watched.taken <= SIZE
    # Who says little, who has it streamed, and everybody else are not affected.
    assert (await buffered(client, "web", header("echo ok")))[0] == Ran(b"ok\n", b"", 0)
    assert len((await stream(client, "web", header(zeros(said)))).stdout) == said
    other = web.client(await web.new_key(owner=BOB))
    assert len((await buffered(other, "web", header(zeros(said))))[0].stdout) == said
    gate.touch()
    assert [len(ran.stdout) for ran, _ in await asyncio.gather(*calls)] == [said] * 3
    await until(lambda: watched.taken == 0)
    assert len((await buffered(client, "web", header(zeros(said))))[0].stdout) == said


def _hold(allowances: list[output_budget.Allowance], size: int) -> bool:
    return sum(one.taken for one in allowances) >= size


async def test_a_client_that_takes_its_time_holds_no_box(web: Web) -> None:
    """The box is let go of while most of the answer, too long for any socket, is still here."""
    await stream(web.client(), "web", header("true"))
    (box,) = await web.operations.boxes.list_boxes(ALICE)
    reader, writer = await open_exec(web, header(zeros(16 * MIB)), QUERY)
    writer.write(b"0\r\n\r\n")
    head = await reader.readuntil(b"\r\n\r\n")
    await until(lambda: web.lifecycle.attachments.count(box.id) == 0)
    (held,) = web.operations.output.owners.active.values()
    assert held.taken > 16 * MIB - 2 * output_budget.ALWAYS
    body = await reader.readexactly(length_of(head))
    assert base64.b64decode(json.loads(body)["stdout"]) == bytes(16 * MIB)
    await until(lambda: held.taken == 0)
    writer.close()


async def test_what_was_held_for_a_client_that_goes_is_free(
    web: Web, allowances: list[output_budget.Allowance]
) -> None:
    await stream(web.client(), "web", header("true"))
    command = header(f"{zeros(SIZE // 4)}; sleep 1000", env={"EXEC_MARK": "left"})
    _, writer = await open_exec(web, command, QUERY)
    await until(partial(_hold, allowances, SIZE // 4 - output_budget.ALWAYS))
    (watched,) = (one for one in allowances if one.taken)
    writer.transport.abort()
    await until(lambda: watched.taken == 0)
    await until(lambda: not marked("left"))
