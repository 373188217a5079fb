"""Commands over HTTP, run by the real agent behind a real tunnel."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import os
import re
import signal
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import httpx
import pytest

from boxd.boxes.limits import source_addresses, tier_limits
from boxd.boxes.presence import expiry
from boxd.boxes.state.requests import BoxAccess
from boxd.clock import SystemClock
from tests.harness.agents.given import give
from tests.harness.agents.unhurried import time_from_first_output
from tests.harness.http.commands import (
    STREAM,
    Ran,
    buffered,
    header,
    marked,
    open_exec,
    read_stream,
    stream,
)
from tests.harness.http.errors import error_of
from tests.harness.http.web import ALICE, BOB
from tests.harness.wait import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.harness.http.web import Web

PLAIN = {"content-type": "text/plain"}
BEGIN = "echo begun; sleep 1000"
DATA = re.compile(rb"event: stdout\ndata: (.*)\n\n")


async def begun(events: AsyncIterator[bytes]) -> bytes:
    """Reads an event stream until the output of BEGIN: the command runs, and its answer too."""
    text = b""
    while base64.b64encode(b"begun\n") not in text:
        text += await anext(events)
    return text


async def until_cut(events: AsyncIterator[bytes]) -> bytes:
    """What comes before the connection is cut within the answer."""
    pieces: list[bytes] = []

    cut = ""
    while not cut:
        try:
            pieces.append(await anext(events))
        except httpx.RemoteProtocolError as error:
            cut = str(error)
    assert "incomplete" in cut
    return b"".join(pieces)


async def test_a_command_streams_both_outputs_and_its_code(web: Web) -> None:
    ran = await stream(web.client(), "web", header("echo out; echo err >&2; exit 3"))
    assert ran == Ran(b"out\n", b"err\n", 3)


async def test_the_buffered_form_tells_the_same(web: Web) -> None:
    ran, duration = await buffered(web.client(), "web", header("echo out; echo err >&2; exit 3"))
    assert ran == Ran(b"out\n", b"err\n", 3)
    assert duration >= 0


async def test_a_plain_body_is_the_command(web: Web) -> None:
    client = web.client()
    text = "printf '%s' \"a  b\"\nread x || echo no input\n"
    for content_type in ("text/plain", "Text/Plain; charset=utf-8"):
        headers = {"content-type": content_type}
        answer = await client.post("/v1/exec/web", content=text.encode(), headers=headers)
        assert read_stream(answer.content) == Ran(b"a  bno input\n", b"", 0)


async def test_input_follows_the_header_line_byte_for_byte(web: Web) -> None:
    data = os.urandom(300_000) + b"\n\0\xff"
    client = web.client()
    assert (await stream(client, "web", header("cat") + data)).stdout == data
    assert (await stream(client, "web", header("cat"))).stdout == b""
    assert (await stream(client, "web", header("cat")[:-1])).stdout == b""
    assert (await buffered(client, "web", header("wc -c") + data))[0].stdout.strip() == b"300003"


async def test_300_commands_lose_no_byte(web: Web) -> None:
    client = web.client()
    await stream(client, "web", header("true"))
    limit = asyncio.Semaphore(6)

    async def one(number: int) -> None:
        text = f"line {number} " + "x" * (number * 7 % 501)
        command = f"echo '{text}'; echo 'e{number}' >&2; exit {number % 256}"
        expected = Ran(f"{text}\n".encode(), f"e{number}\n".encode(), number % 256)
        async with limit:
            if number % 2:
                assert await stream(client, "web", header(command)) == expected
            else:
                assert (await buffered(client, "web", header(command)))[0] == expected

    await asyncio.gather(*(one(number) for number in range(300)))


async def test_50_mb_of_output(web: Web) -> None:
    command = "head -c 50000000 /dev/zero | tr '\\0' 'a'; echo done >&2"
    ran = await stream(web.client(), "web", header(command))
    assert (len(ran.stdout), ran.stderr, ran.code) == (50_000_000, b"done\n", 0)
    assert ran.stdout.count(b"a") == 50_000_000


async def test_a_signal_is_128_and_its_number(web: Web) -> None:
    client = web.client()
    for name, number in (("TERM", 15), ("KILL", 9), ("USR1", 10)):
        assert (await stream(client, "web", header(f"kill -{name} $$"))).code == 128 + number


async def test_environment_is_merged_over_that_of_the_session(web: Web) -> None:
    command = 'printf "%s|%s|%s|%s" "$A_1" "$HOME" "$LANG" "$EMPTY"'
    env = {"A_1": "x y\n$z 'q'", "LANG": "tlh", "EMPTY": ""}
    ran = await stream(web.client(), "web", header(command, env=env))
    assert ran.stdout == f"{env['A_1']}|{os.path.expanduser('~')}|tlh|".encode()


async def test_what_an_attachment_brings_is_beneath_what_is_asked_for(
    web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    give(monkeypatch, web.operations, {"GIVEN": "x 'y'", "MINE": "theirs"})
    command = header('printf "%s|%s" "$GIVEN" "$MINE"', env={"MINE": "mine"})
    assert (await stream(web.client(), "web", command)).stdout == b"x 'y'|mine"


@pytest.mark.parametrize(
    ("spec", "workspace", "name"),
    [
        ("web", None, "web"),
        ("WEB", None, "web"),
        ("web:debian", None, "web"),
        ("web:debian:large", None, "web"),
        ("web:debian%5E1h+5m", None, "web"),
        ("web^1h", None, "web"),
        ("ws1/web", "ws1", "web"),
        ("ws1%2Fweb", "ws1", "web"),
        ("web?ws=ws1", "ws1", "web"),
        ("ws1%2fweb?ws=ws1", "ws1", "web"),
    ],
)
async def test_forms_of_a_spec(web: Web, spec: str, workspace: str | None, name: str) -> None:
    answer = await web.client().post(f"/v1/exec/{spec}", content=b"true", headers=PLAIN)
    assert read_stream(answer.content).code == 0
    (box,) = await web.operations.boxes.list_boxes(ALICE, everywhere=True)
    assert (box.workspace, box.name) == (workspace, name)
    assert box.deadline is not None


async def test_a_fresh_box_replaces_the_old_one(web: Web) -> None:
    client = web.client()
    ids = []
    for spec in ("web", "web", "web%2B", "web+"):
        await stream(client, spec, header("true"))
        (box,) = await web.operations.boxes.list_boxes(ALICE)
        ids.append(box.id)
    assert ids[0] == ids[1]
    assert len(set(ids)) == 3


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("", 400),
        ("we_b", 400),
        ("web:", 400),
        ("web%FF", 400),
        ("web^0s", 400),
        ("web:nowhere", 400),
        ("jump", 400),
        ("session-web", 400),
        ("ws1/web?ws=ws2", 400),
        ("web?ws=NO_GOOD", 400),
        ("web?stream=maybe", 400),
        ("web?stream=false&stream=true", 400),
    ],
)
async def test_specs_that_make_no_box(web: Web, path: str, status: int) -> None:
    answer = await web.client().post(f"/v1/exec/{path}", content=b"true", headers=PLAIN)
    assert answer.status_code == status
    assert error_of(answer)
    assert await web.operations.boxes.list_boxes(ALICE, everywhere=True) == []


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ({}, b"true"),
        ({"content-type": "application/xml"}, b'{"cmd": "true"}'),
        (PLAIN, b""),
        (PLAIN, b"a\0b"),
        (PLAIN, b"\xff\xfe"),
        (STREAM, b""),
        (STREAM, b"\n"),
        (STREAM, b"true\n"),
        (STREAM, b"[]\n"),
        (STREAM, header("")),
        (STREAM, header("true", timeout_s=0)),
        (STREAM, header("true", timeout_s="5")),
        (STREAM, header("true", env={"A-B": "x"})),
        (STREAM, header("x" * 65536)),
        (STREAM, b" " * (1 << 20)),
        (STREAM, b"[" * 10_000 + b"]" * 10_000 + b"\n"),
    ],
)
async def test_bad_requests_are_refused_before_anything_happens(
    web: Web, headers: dict[str, str], body: bytes
) -> None:
    answer = await web.client().post("/v1/exec/web", content=body, headers=headers)
    assert answer.status_code == 400
    assert error_of(answer)
    assert await web.operations.boxes.list_boxes(ALICE) == []


async def test_a_command_that_no_shell_could_take_is_413(web: Web) -> None:
    answer = await web.client().post("/v1/exec/web", content=b"x" * 200_000, headers=PLAIN)
    assert answer.status_code == 413
    assert error_of(answer)


async def test_a_timeout_ends_the_group_with_124(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    time_from_first_output(monkeypatch)  # then the trap is set
    client = web.client()
    command = "trap 'echo caught; exit 7' TERM; echo begun; sleep 1000 & wait"
    ran = await stream(client, "web", header(command, timeout_s=1, env={"EXEC_MARK": "polite"}))
    assert ran.code == 124
    assert ran.stdout == b"begun\ncaught\n"
    assert ran.stderr.endswith(b"boxd: the command was ended after its timeout of 1 s\n")
    told, _ = await buffered(client, "web", header("sleep 1000", timeout_s=1))
    assert told.code == 124
    await until(lambda: not marked("polite"))
    assert (await stream(client, "web", header("echo alive"))).stdout == b"alive\n"


async def test_a_command_that_ignores_term_is_killed(
    web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    time_from_first_output(monkeypatch)
    command = "trap '' TERM HUP; echo begun; while :; do sleep 0.1; done"
    body = header(command, timeout_s=1, env={"EXEC_MARK": "stubborn"})
    ran = await stream(web.client(), "web", body)
    assert (ran.stdout, ran.code) == (b"begun\n", 124)
    await until(lambda: not marked("stubborn"))


async def test_input_and_output_overlap(web: Web) -> None:
    reader, writer = await open_exec(web, header("while read x; do echo got $x; done"))
    for number in range(5):
        line = b"%d\n" % number
        writer.write(b"%x\r\n%b\r\n" % (len(line), line))
        coded = base64.b64encode(b"got %d\n" % number)
        await asyncio.wait_for(reader.readuntil(b"data: " + coded + b"\n\n"), 10)
    writer.write(b"0\r\n\r\n")
    await asyncio.wait_for(reader.readuntil(b'{"code": 0}\n\n'), 10)
    writer.close()


async def test_curl_streams_its_input_while_output_comes(web: Web) -> None:
    """With `-T .`: curl itself stops reading answers while it waits for input of `-T -`."""
    process = await asyncio.create_subprocess_exec(
        "curl", "-sSN", "-T", ".", "-X", "POST",
        "-H", f"X-Api-Key: {web.key}",
        "-H", "Content-Type: application/x-svc-exec",
        f"{web.url}/v1/exec/web",
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(header("cat"))
    answer = shown = b""
    for text in (b"first", b"second"):
        process.stdin.write(text)
        await process.stdin.drain()
        shown += text
        # It may come in several events.
        while b"".join(base64.b64decode(data) for data in DATA.findall(answer)) != shown:
            answer += await asyncio.wait_for(process.stdout.readuntil(b"\n\n"), 30)
    process.stdin.close()
    answer += await asyncio.wait_for(process.stdout.read(), 30)
    assert read_stream(answer) == Ran(b"firstsecond", b"", 0)
    assert await process.wait() == 0


async def test_curl_uploads_its_input(web: Web) -> None:
    data = header("sha256sum") + os.urandom(20 << 20)
    process = await asyncio.create_subprocess_exec(
        "curl", "-sSN", "-T", "-", "-X", "POST",
        "-H", f"X-Api-Key: {web.key}",
        "-H", "Content-Type: application/x-svc-exec",
        f"{web.url}/v1/exec/web",
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    answer, _ = await asyncio.wait_for(process.communicate(data), 30)
    digest = hashlib.sha256(data[data.index(b"\n") + 1 :]).hexdigest()
    assert read_stream(answer).stdout.split()[0].decode() == digest


async def test_a_command_that_ends_before_its_input_does(web: Web) -> None:
    reader, writer = await open_exec(web, header("head -c 3; exit 5") + b"abcdef")
    answer = await asyncio.wait_for(reader.read(), 10)
    writer.close()
    assert b"connection: close" in answer.lower()
    assert base64.b64encode(b"abc") in answer
    assert answer.endswith(b'event: exit\ndata: {"code": 5}\n\n\r\n0\r\n\r\n')


async def test_a_command_that_reads_nothing_of_much_input(web: Web) -> None:
    ran = await stream(web.client(), "web", header("echo done") + bytes(30 << 20))
    assert ran == Ran(b"done\n", b"", 0)


async def test_much_input_arrives(web: Web) -> None:
    data = os.urandom(1 << 20) * 40
    ran = await stream(web.client(), "web", header("sha256sum") + data)
    assert ran.stdout.split()[0].decode() == hashlib.sha256(data).hexdigest()


@pytest.mark.parametrize("query", ["", "?stream=false"])
async def test_a_client_that_goes_ends_the_command_and_leaves_the_box(web: Web, query: str) -> None:
    client = web.client()
    await stream(client, "web", header("true"))
    body = header("trap '' HUP TERM; sleep 1000 & wait; sleep 1000", env={"EXEC_MARK": "left"})
    _, writer = await open_exec(web, body, query)
    await until(lambda: len(marked("left")) >= 2)
    (box,) = await web.operations.boxes.list_boxes(ALICE)
    assert box.why == {"exec": 1}
    writer.transport.abort()
    await until(lambda: not marked("left"))
    await until(lambda: web.lifecycle.attachments.count(box.id) == 0)
    assert (await stream(client, "web", header("echo alive"))).stdout == b"alive\n"


@pytest.mark.slow
async def test_a_client_that_goes_while_its_input_is_stuck(web: Web) -> None:
    """Nobody reads the body then, so that the end shows only on the connection itself."""
    body = header("sleep 1000", env={"EXEC_MARK": "stuck"})
    _, writer = await open_exec(web, body)
    await until(lambda: marked("stuck"))
    block = b"10000\r\n" + bytes(65536) + b"\r\n"
    for _ in range(200):
        writer.write(block)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(writer.drain(), 1)
    writer.transport.abort()
    # Noticed at the latest when the second keep-alive meets a closed connection.
    await until(lambda: not marked("stuck"), deadline=40)


async def test_a_client_that_does_not_read_holds_the_command(web: Web, tmp_path: Path) -> None:
    counter = 'i=0; while :; do head -c 65536 /dev/zero; i=$((i+1)); echo $i > "$COUNT"; done'
    path = f"{tmp_path}/count"
    _, writer = await open_exec(web, header(counter, env={"COUNT": path, "EXEC_MARK": "held"}))
    seen = [0]

    def stands_still() -> bool:
        try:
            with open(path, encoding="ascii") as file:
                now = int(file.read() or 0)
        except FileNotFoundError:
            return False
        still = now > 0 and now == seen[0]
        seen[0] = now
        time.sleep(0.2)
        return still

    await until(stands_still)
    assert seen[0] * 65536 < 16 << 20
    writer.transport.abort()
    await until(lambda: not marked("held"))


async def test_too_much_buffered_output_is_413_and_ends_the_command(web: Web) -> None:
    body = header("cat /dev/zero", env={"EXEC_MARK": "flood"})
    for command in (body, header("cat /dev/zero >&2", env={"EXEC_MARK": "flood"})):
        answer = await web.client().post(
            "/v1/exec/web?stream=false", content=command, headers=STREAM
        )
        assert answer.status_code == 413
        assert "stream" in error_of(answer)
    await until(lambda: not marked("flood"))


@pytest.mark.slow
async def test_keepalive_every_15_seconds(web: Web) -> None:
    ran = await web.client().post(
        "/v1/exec/web", content=header("sleep 16; echo ok"), headers=STREAM
    )
    assert ran.content.count(b": keepalive\n\n") == 1
    assert read_stream(ran.content) == Ran(b"ok\n", b"", 0)


async def test_a_box_that_dies_ends_the_stream_with_255(web: Web) -> None:
    client = web.client()
    await stream(client, "web", header("true"))
    (box,) = await web.operations.boxes.list_boxes(ALICE)
    held = asyncio.create_task(
        client.post("/v1/exec/web?stream=false", content=header("sleep 1000"), headers=STREAM)
    )
    await until(lambda: web.lifecycle.attachments.count(box.id) == 1)
    running = client.stream("POST", "/v1/exec/web", content=header(BEGIN), headers=STREAM)
    async with running as answer, asyncio.timeout(30):
        events = answer.aiter_raw()
        text = await begun(events)
        assert (await web.client().delete("/v1/boxes/web")).status_code == 204
        ran = read_stream(text + b"".join([piece async for piece in events]))
    assert ran.code == 255
    assert ran.stderr.startswith(b"boxd: ")
    answer = await asyncio.wait_for(held, 30)
    assert answer.status_code == 503
    assert error_of(answer)


@pytest.mark.parametrize("how", ["revoked", "expired"])
async def test_a_key_that_is_over_ends_its_commands(
    web: Web, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(expiry, "LOOK_EVERY_S", 0.05)
    client = web.client(await web.new_key(name="short", ttl=timedelta(hours=1)))
    await stream(client, "web", header("true"))
    (box,) = await web.operations.boxes.list_boxes(ALICE)
    body = header(BEGIN, env={"EXEC_MARK": how})
    running = client.stream("POST", "/v1/exec/web", content=body, headers=STREAM)
    async with running as answer, asyncio.timeout(30):
        events = answer.aiter_raw()
        await begun(events)
        await until(lambda: marked(how))  # while the shell becomes `sleep` it shows none
        if how == "revoked":
            await web.operations.keys.remove_key(ALICE, "short")
        else:
            later = datetime.now(UTC) + timedelta(hours=1)
            monkeypatch.setattr(SystemClock, "now", lambda _: later)
        text = await until_cut(events)
        said = {"revoked": "API key short was revoked", "expired": "this API key has expired"}
        last = base64.b64encode(f"boxd: {said[how]}\n".encode())
        assert text.endswith(b"event: stderr\ndata: " + last + b"\n\n")
        assert b"event: exit" not in text
    await until(lambda: not marked(how))
    assert web.lifecycle.attachments.count(box.id) == 0


async def test_boxes_count_for_the_address_that_starts_them(
    web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_addresses, "is_exempt", lambda *_: False)
    monkeypatch.setattr(tier_limits.Tier, "running", 1)
    monkeypatch.setattr(tier_limits, "RUNNING_PER_SOURCE", 1)
    assert (await stream(web.client(), "web", header("true"))).code == 0
    other = web.client(await web.new_key(BOB))
    answer = await other.post("/v1/exec/web", content=header("true"), headers=STREAM)
    assert answer.status_code == 429
    assert "1 running boxes from your address" in error_of(answer)


async def test_a_scoped_key_runs_in_its_workspace(web: Web) -> None:
    client = web.client(await web.new_key(scope="ws1"))
    await stream(client, "web", header("true"))
    for path in ("ws2/web", "web?ws=ws2"):
        refused = await client.post(f"/v1/exec/{path}", content=b"true", headers=PLAIN)
        assert refused.status_code == 403
        assert "ws1" in error_of(refused)
    (box,) = await web.operations.boxes.list_boxes(ALICE, everywhere=True)
    assert box.workspace == "ws1"


async def test_names_are_per_owner(web: Web) -> None:
    await stream(web.client(), "web", header("true"))
    await stream(web.client(await web.new_key(BOB)), "web", header("true"))
    (mine,) = await web.operations.boxes.list_boxes(ALICE)
    (theirs,) = await web.operations.boxes.list_boxes(BOB)
    assert mine.id != theirs.id


async def test_a_confidential_box_is_reached_by_its_own_server_alone(web: Web) -> None:
    key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHtRwsqnqZqTtHFUUd1VbzwXlyfdIVJO5OWC4Ft44yVS"
    async with web.operations.boxes.attach(
        ALICE, BoxAccess("web", kind="spec", why="relay", relay=key)
    ):
        pass
    for query in ("", "?stream=false"):
        answer = await web.client().post(f"/v1/exec/web{query}", content=b"id", headers=PLAIN)
        assert answer.status_code == 403
        assert "ssh -J jump@HOST root@web" in error_of(answer)
    (box,) = (await web.client().get("/v1/boxes")).json()
    assert (box["confidential"], box["attached"]) == (True, 0)


async def test_a_throwaway_box_goes_with_its_command(web: Web) -> None:
    assert (await stream(web.client(), "_", header("echo ok"))).stdout == b"ok\n"
    await until(lambda: not web.store._boxes)


async def test_a_child_that_outlives_the_command_is_not_waited_for(web: Web) -> None:
    body = header("sleep 1000 & echo $!", timeout_s=20)
    ran = await stream(web.client(), "web", body)
    os.kill(int(ran.stdout), signal.SIGKILL)
    assert (ran.stderr, ran.code) == (b"", 0)
