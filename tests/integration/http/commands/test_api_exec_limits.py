"""Exec over HTTP at its limits: hostile headers, much input, clients that go or stall."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import random
import time
from typing import TYPE_CHECKING

import pytest

from boxd.http.server import protocol
from tests.harness.http.commands import (
    STREAM,
    Ran,
    header,
    marked,
    open_exec,
    read_stream,
    silent,
    stream,
)
from tests.harness.http.drives import MIB, body, forget_peak, resident
from tests.harness.http.errors import error_of
from tests.harness.http.web import ALICE
from tests.harness.wait import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.harness.http.web import Web
    from tests.plugins.figures import Figures

KEYS = ("", "1A", "A-B", "A B", "A=B", "A\n", "A\0", "É", "a.b", "$(id)", "A;id", " A", "A ")


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b" " * MIB,
        b'{"cmd": "' + b"x" * MIB + b'"}\n',
        b'{"x": ' + b"[" * 10_000 + b"]" * 10_000 + b', "cmd": "true"}\n',
        b'{"cmd": "true", "x": ' + b'{"a":' * 10_000 + b"1" + b"}" * 10_000 + b"}\n",
        b'{"cmd": "true", "timeout_s": NaN}\n',
        b'{"cmd": "true", "x": [Infinity]}\n',
        b'{"cmd": "true"\n}',
        b"\xef\xbb\xbf" + header("true"),
        header("true").decode().encode("utf-16"),
        *(header("true", timeout_s=value) for value in (0, -1, 1 << 63, 86_401, "5", 1.5, True)),
        *(header("true", env={key: "x"}) for key in KEYS),
        header("true", env={f"A{n}": "" for n in range(257)}),
        header("true", env={"A": None}),
        header("true", env=[["A", "x"]]),
    ],
)
async def test_headers_that_are_refused_make_no_box(web: Web, line: bytes) -> None:
    for query in ("", "?stream=false"):
        answer = await web.client().post(f"/v1/exec/web{query}", content=line, headers=STREAM)
        assert answer.status_code == 400, answer.text
        assert error_of(answer)
    assert await web.operations.boxes.list_boxes(ALICE) == []


@pytest.mark.parametrize("size", [65_536, 65_537])
async def test_the_header_line_has_at_most_64_kib(web: Web, size: int) -> None:
    line = header("echo ok", filler="")
    line = line.replace(b'"filler": ""', b'"filler": "' + b"x" * (size - len(line) + 1) + b'"')
    assert line.index(b"\n") == size
    answer = await web.client().post("/v1/exec/web", content=line, headers=STREAM)
    if size > 65_536:
        assert answer.status_code == 400
        assert "65536" in error_of(answer)
    else:
        assert read_stream(answer.content) == Ran(b"ok\n", b"", 0)


async def test_a_header_in_pieces_is_one_line(web: Web) -> None:
    line = header("cat")

    async def pieces() -> AsyncIterator[bytes]:
        for byte in line:
            yield bytes([byte])
        yield b"in"
        yield b"put"

    answer = await web.client().post("/v1/exec/web", content=pieces(), headers=STREAM)
    assert read_stream(answer.content).stdout == b"input"


@pytest.mark.figure("EX-STDIN")
async def test_input_of_any_size_takes_constant_memory(web: Web, figures: Figures) -> None:
    client = web.client()
    await stream(client, "web", header("true"))
    for _ in figures(ci=1, long=1):
        size = 1024 * MIB if figures.long else 96 * MIB
        wanted = hashlib.sha256()
        async for piece in body(size):
            wanted.update(piece)

        async def sent(size: int = size) -> AsyncIterator[bytes]:
            yield header("sha256sum; echo over >&2")
            async for piece in body(size):
                yield piece

        before = forget_peak()
        answer = await client.post("/v1/exec/web", content=sent(), headers=STREAM, timeout=600)
        ran = read_stream(answer.content)
        assert (ran.stdout.split()[0].decode(), ran.stderr) == (wanted.hexdigest(), b"over\n")
        assert resident("VmHWM") - before < 32 * MIB


@pytest.mark.figure("EX-GONE")
@pytest.mark.timeout(120)
async def test_clients_that_go_at_any_moment_leave_nothing(web: Web, figures: Figures) -> None:
    await stream(web.client(), "web", header("true"))
    (box,) = await web.operations.boxes.list_boxes(ALICE)
    tasks = len(asyncio.all_tasks())
    commands = (
        "sleep 1000",
        "cat",
        "yes | head -c 300000; sleep 1000",
        "trap '' HUP; sleep 1000 & wait",
        "exit 3",
    )
    for seed in figures(ci=30, long=2000):
        drawn = random.Random(seed)
        text = header(drawn.choice(commands), env={"EXEC_MARK": "gone"})
        query = drawn.choice(("", "?stream=false"))
        reader, writer = await open_exec(web, text[: drawn.randrange(1, len(text) + 1)], query)
        wanted = drawn.randrange(0, 3000)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(reader.read(wanted), drawn.random() / 10)
        writer.transport.abort()
    await until(lambda: not marked("gone"))
    await until(lambda: web.lifecycle.attachments.count(box.id) == 0)
    await until(lambda: len(asyncio.all_tasks()) <= tasks)
    assert (await stream(web.client(), "web", header("echo alive"))).stdout == b"alive\n"


@pytest.mark.timeout(240)
async def test_clients_that_read_nothing_hold_a_mib_each(
    web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sockets of the clients are read by nobody: what is held stands in the service."""
    monkeypatch.setattr(protocol, "STALLED_S", 3600)
    await stream(web.client(), "web", header("true"))
    wanted = [0, 0]

    def stands_still() -> bool:
        now = sum(bytes_written(pid) for pid in marked("idle"))
        wanted[:] = [now, wanted[1] + 1 if now == wanted[0] else 0]
        return wanted[1] > 20

    with contextlib.ExitStack() as stack:

        async def more(clients: int) -> int:
            before = len(marked("idle"))
            for _ in range(clients):
                stack.callback(silent(web, header("cat /dev/zero", env={"EXEC_MARK": "idle"})))
            # On a busy machine 28 commands take long to fill what is between them and the service.
            await until(lambda: len(marked("idle")) >= before + clients, deadline=100)
            await until(stands_still, deadline=100)
            return resident("VmRSS")

        few = await more(4)
        # A quarter of it is what a connection, its tasks and its channel take without any output.
        assert await more(28) - few < 28 * 1.25 * MIB
    await until(lambda: not marked("idle"))


def bytes_written(pid: int) -> int:
    """Bytes that a process has written so far; 0 when it is gone."""
    try:
        with open(f"/proc/{pid}/io", encoding="ascii") as file:
            fields = dict(line.split(": ") for line in file)
    except OSError:
        return 0
    return int(fields["wchar"])


@pytest.mark.slow
@pytest.mark.figure("SSE")
async def test_keepalives_come_every_15_seconds_whatever_else_flows(
    web: Web, figures: Figures
) -> None:
    client = web.client()
    await stream(client, "web", header("true"))
    for _ in figures(ci=1, long=1):
        seconds, streams = (600, 200) if figures.long else (16, 6)
        noisy = header(
            f"for i in $(seq {4 * seconds}); do echo $i; sleep 0.25; done", timeout_s=900
        )
        quiet = header(f"sleep {seconds}; echo ok", timeout_s=900)

        async def one(number: int, bodies: tuple[bytes, bytes] = (noisy, quiet)) -> bytes:
            answer = await client.post(
                "/v1/exec/web", content=bodies[number % 2], headers=STREAM, timeout=None
            )
            return answer.content

        began = time.monotonic()
        texts = await asyncio.gather(*(one(number) for number in range(streams)))
        took = time.monotonic() - began
        for text in texts:
            assert read_stream(text).code == 0
            assert seconds // 15 <= text.count(b": keepalive\n\n") <= took // 15


async def test_other_forms_of_the_media_types(web: Web) -> None:
    client = web.client()
    for kind in ("APPLICATION/X-SVC-EXEC", "application/x-svc-exec; v=1", "text/plain ;a=b"):
        content = json.dumps({"cmd": "echo ok"}).encode() if "exec" in kind.lower() else b"echo ok"
        answer = await client.post("/v1/exec/web", content=content, headers={"content-type": kind})
        assert read_stream(answer.content) == Ran(b"ok\n", b"", 0)
    for kind in ("text/plainer", "application/octet-stream", "x-svc-exec", ""):
        answer = await client.post(
            "/v1/exec/web", content=b"echo ok", headers={"content-type": kind}
        )
        assert answer.status_code == 400
        assert "Content-Type" in error_of(answer)
