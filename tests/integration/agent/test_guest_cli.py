"""`box-guest` in the box, and clients of the guest socket that do not behave."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import TYPE_CHECKING

import pytest

from box_guest import protocol
from boxd.errors import Conflict
from boxd.tunnel.channel import ExitStatus
from tests.harness.agents.agent import BOX_ID
from tests.harness.wait import until

if TYPE_CHECKING:
    from tests.harness.agents.agent import LocalBox


async def cli(box: LocalBox, *arguments: str) -> tuple[int, str, str]:
    """Runs the command; exit status, stdout, stderr."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "box_guest.cli", "--socket", str(box.guest_socket)),
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(20):
        stdout, stderr = await process.communicate()
    assert process.returncode is not None
    return process.returncode, stdout.decode(), stderr.decode()


async def test_info(local_box: LocalBox) -> None:
    code, stdout, _ = await cli(local_box, "info")
    assert code == 0
    assert f"id: {BOX_ID}\nname: web\n" in stdout
    assert "tunnel: up" in stdout
    for words in (("--json", "info"), ("info", "--json")):
        code, stdout, _ = await cli(local_box, *words)
        assert json.loads(stdout)["id"] == BOX_ID
    for order in (("workspace", "--json", "info"), ("workspace", "info", "--json")):
        assert json.loads((await cli(local_box, *order))[1])["verb"] == "info"


@pytest.mark.parametrize("verb", ["mount", "info", "umount"])
async def test_workspace_asks_the_daemon(local_box: LocalBox, verb: str) -> None:
    code, stdout, stderr = await cli(local_box, "workspace", verb)
    assert (code, stderr) == (0, "")
    assert stdout == f"path: /wrk\nverb: {verb}\n"
    assert local_box.requests == [(BOX_ID, "workspace", {"verb": verb})]


@pytest.mark.parametrize(
    ("words", "verb", "params"),
    [
        (("pin",), "pin", {"for_s": 7200, "why": ""}),
        (("pin", "--for", "7d", "--why", "a long build"), "pin", None),
        (("unpin",), "unpin", {}),
        (("auto-suspend", "off"), "auto_suspend", {"on": False}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
async def test_what_keeps_the_box_awake(
    local_box: LocalBox, words: tuple[str, ...], verb: str, params: dict[str, object] | None
) -> None:
    local_box.answer = {"pinned_until": "2026-01-01T00:00:00Z", "auto_suspend": False}
    code, stdout, stderr = await cli(local_box, *words)
    assert (code, stderr) == (0, "")
    assert "pinned_until: 2026-01-01T00:00:00Z\nauto_suspend: off\n" in stdout
    wanted = {"for_s": 604800, "why": "a long build"} if params is None else params
    assert local_box.requests == [(BOX_ID, verb, wanted)]


async def test_info_shows_what_keeps_the_box_awake(local_box: LocalBox) -> None:
    local_box.answer = {"pinned_until": None, "auto_suspend": True}
    code, stdout, _ = await cli(local_box, "info")
    assert code == 0
    assert "tunnel: up\npinned_until: none\nauto_suspend: on\n" in stdout
    local_box.refusal = Conflict("the service is busy")
    code, stdout, _ = await cli(local_box, "info")
    assert code == 0
    assert "tunnel: up\nlife: unknown: the service is busy\n" in stdout


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("pin", "--for", "0s"), "a pin lasts from 1 second to 7 days"),
        (("pin", "--for", "8d"), "a pin lasts from 1 second to 7 days"),
        (("pin", "--why", "x" * 201), "at most 200 printable characters"),
        (("pin", "--why", "a\nb"), "at most 200 printable characters"),
    ],
    ids=lambda words: " ".join(words)[:12] if isinstance(words, tuple) else "",
)
async def test_pins_out_of_bounds_do_not_reach_the_daemon(
    local_box: LocalBox, words: tuple[str, ...], text: str
) -> None:
    code, stdout, stderr = await cli(local_box, *words)
    assert (code, stdout) == (1, "")
    assert text in stderr
    assert local_box.requests == []
    assert local_box.misbehaviour == []


async def test_many_askers_at_once_do_not_count_as_misbehaviour(local_box: LocalBox) -> None:
    """What everybody in the box asks together stays within what the daemon takes from a box."""
    requests = b"".join(protocol.encode({"type": "life", "id": n}) for n in range(10))
    streams = [await asyncio.open_unix_connection(str(local_box.guest_socket)) for _ in range(10)]
    async with asyncio.timeout(60):
        for _, writer in streams:
            writer.write(requests)
        for reader, writer in streams:
            for _ in range(10):
                assert json.loads(await reader.readline())["ok"] is True
            writer.close()
            await writer.wait_closed()
    assert local_box.misbehaviour == []
    assert (await local_box.tunnel()).hello.generation == 1


async def test_sizes_have_units(local_box: LocalBox) -> None:
    local_box.answer = {
        "health": "ok",
        "bytes_used": 1536,
        "bytes_limit": None,
        "inodes_used": 2048,
        "pending_bytes": 5,
        "memory_bytes": 3 << 40,
    }
    _, stdout, _ = await cli(local_box, "workspace", "info")
    assert stdout.splitlines() == [
        "health: ok",
        "bytes_used: 1.5 KiB",
        "bytes_limit: none",
        "inodes_used: 2048",
        "pending_bytes: 5 B",
        "memory_bytes: 3.0 TiB",
        "verb: info",
    ]


async def test_refusals_are_shown(local_box: LocalBox) -> None:
    local_box.refusal = Conflict("/wrk is in use by process 17 (vim)")
    code, stdout, stderr = await cli(local_box, "workspace", "umount")
    assert (code, stdout) == (1, "")
    assert stderr == "box-guest: /wrk is in use by process 17 (vim)\n"


async def test_without_a_tunnel(local_box: LocalBox) -> None:
    await local_box.registry.close_all()
    state = ""
    async with asyncio.timeout(10):
        while "down" not in state:
            _, state, _ = await cli(local_box, "info")
    code, _, stderr = await cli(local_box, "workspace", "mount")
    assert code == 1
    assert "the tunnel to the service is down" in stderr


async def test_without_an_agent(local_box: LocalBox) -> None:
    await local_box.stop()
    code, _, stderr = await cli(local_box, "info")
    assert code == 1
    assert str(local_box.guest_socket) in stderr


@pytest.mark.parametrize("arguments", [(), ("nonsense",), ("workspace",), ("workspace", "eat")])
async def test_usage(local_box: LocalBox, arguments: tuple[str, ...]) -> None:
    code, stdout, stderr = await cli(local_box, *arguments)
    assert (code, stdout) == (2, "")
    assert "usage: box-guest" in stderr


@pytest.mark.parametrize(
    "line",
    [b"garbage\n", b"{}\n", b"\xff\n", b"x" * 200_000, b"", b"[" * 50_000 + b"\n"],
    ids=lambda line: repr(line[:8]),
)
async def test_nonsense_on_the_guest_socket(local_box: LocalBox, line: bytes) -> None:
    reader, writer = await asyncio.open_unix_connection(str(local_box.guest_socket))
    writer.write(line)
    if writer.can_write_eof():
        writer.write_eof()
    async with asyncio.timeout(10):
        try:
            assert await reader.read() == b""
        except ConnectionError:  # closed with our bytes unread, or before we had sent them all
            reader.feed_eof()
    writer.close()
    await asyncio.gather(writer.wait_closed(), return_exceptions=True)
    code, _, _ = await cli(local_box, "info")
    assert code == 0


async def test_unknown_requests_are_refused(local_box: LocalBox) -> None:
    reader, writer = await asyncio.open_unix_connection(str(local_box.guest_socket))
    for request in ({"type": "fly", "id": 3}, {"type": "workspace", "id": 4, "verb": "eat"}):
        writer.write(json.dumps(request).encode() + b"\n")
        answer = json.loads(await reader.readline())
        assert (answer["id"], answer["ok"]) == (request["id"], False)
        assert answer["error"]
    writer.close()
    await writer.wait_closed()
    assert local_box.requests == []


async def test_agent_ends_on_sigterm_and_cleans_up(local_box: LocalBox) -> None:
    assert local_box.process is not None
    local_box.process.terminate()
    async with asyncio.timeout(20):
        assert await local_box.process.wait() == 0
    await until(lambda: not local_box.guest_socket.exists())


async def test_agent_names_a_broken_configuration(local_box: LocalBox) -> None:
    await local_box.stop()
    (local_box.run_dir / "config.json").write_text("{")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "box_guest", "--run-dir", str(local_box.run_dir)),
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(20):
        _, stderr = await process.communicate()
    assert process.returncode == 1
    assert stderr.decode() == f"box-guest: {local_box.run_dir}/config.json: the file is not JSON\n"


async def test_the_agent_survives_everything_above(local_box: LocalBox) -> None:
    assert (await local_box.run("true")).status == ExitStatus(0, None)
