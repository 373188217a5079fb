"""Commands through the front door, with the stock OpenSSH client."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from boxd.ssh.connection import relay
from boxd.ssh.connection.server_connection import ServerConnection
from boxd.tunnel.opening import opened
from tests.harness.agents.given import give
from tests.harness.ssh.openssh import HOST, end_input, run, running
from tests.harness.wait import until

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    import asyncssh

    from tests.harness.ssh.frontdoor import Entrance

    Pair = tuple[asyncssh.SSHClientChannel[bytes], object]

MIB = 1024 * 1024


async def test_a_command_gives_its_output_and_status(front_door: Entrance) -> None:
    done = await front_door.client.run("web", "echo out; echo err >&2; exit 3")
    assert (done.status, done.stdout, done.stderr) == (3, b"out\n", b"err\n")


async def test_a_command_ended_by_a_signal_is_told_as_such(front_door: Entrance) -> None:
    done = await front_door.client.run("web", "kill -TERM $$")
    assert done.status == 255  # what OpenSSH itself returns for exit-signal


async def test_stderr_after_the_end_of_stdout(front_door: Entrance) -> None:
    done = await front_door.client.run("web", "exec >&-; echo late >&2; exit 4")
    assert (done.status, done.stdout, done.stderr) == (4, b"", b"late\n")


async def test_input_ends_before_output(front_door: Entrance) -> None:
    data = bytes(range(256)) * 4096
    done = await front_door.client.run("web", "cat; echo done", stdin=data)
    assert done.status == 0
    assert done.stdout == data + b"done\n"


async def test_input_sent_while_the_box_is_made_arrives_first_and_whole(
    front_door: Entrance,
) -> None:
    data = b"0123456789abcdef" * (MIB // 4)
    done = await front_door.client.run("new-box", "sha256sum", stdin=data)
    assert done.text.split()[0] == hashlib.sha256(data).hexdigest()


async def test_a_reader_that_goes_away_ends_the_writer(front_door: Entrance) -> None:
    client = front_door.client
    command = " ".join(f"'{word}'" for word in client.ssh("web", "yes")) + " | head -n 1000"
    done = await run(["bash", "-c", f"set -o pipefail; {command}; echo ${{PIPESTATUS[1]}}"])
    assert done.stdout == b"y\n" * 1000 + b"0\n"


async def test_a_reader_that_goes_away_when_all_stands_full_ends_the_writer(
    front_door: Entrance,
) -> None:
    """OpenSSH gives no more room then for what it has and does not pass on."""
    holds = front_door.lifecycle.attachments
    async with front_door.client.second("web") as connection, asyncio.timeout(60):
        process = await connection.create_process("exec yes", window=1 << 16)
        process.channel.pause_reading()
        (server,) = front_door.door._state.connections
        assert isinstance(server, ServerConnection)
        await until(lambda: any(one._send_buf for one in server._conn._channels.values()))
        process.channel._send_request(b"eow@openssh.com")
        await until(lambda: not holds.held())
        process.channel.resume_reading()
        done = await process.wait()
        assert done.exit_signal is not None
        assert done.exit_signal[0] == "PIPE"


async def test_a_client_that_goes_away_ends_its_command(
    front_door: Entrance, tmp_path: Path
) -> None:
    mark = tmp_path / "pid"
    command = f"echo $$ > {mark}.new; mv {mark}.new {mark}; exec sleep 600"
    async with running(front_door.client.ssh("web", command)):
        await until(mark.exists)
    process = Path("/proc") / mark.read_text().strip()
    await until(lambda: not process.exists())


async def test_the_environment_is_passed_but_not_the_loaders(front_door: Entrance) -> None:
    settings = ["-o", "SetEnv=LC_TEST=a LANG=C.UTF-8 MINE=x\u00e9 LD_PRELOAD=/evil BOX_ID=1"]
    show = 'echo "$LC_TEST|$LANG|$MINE|$LD_PRELOAD|$BOX_ID"'
    done = await front_door.client.run("web", *settings, show)
    values = done.text.rstrip("\n").split("|")
    assert values[:4] == ["a", "C.UTF-8", "x\u00e9", ""]
    assert values[4] != "1"


async def test_what_an_attachment_brings_is_beneath_what_the_client_sets(
    front_door: Entrance, monkeypatch: pytest.MonkeyPatch
) -> None:
    give(monkeypatch, front_door.operations, {"GIVEN": "x\n\udce9 'y'", "MINE": "theirs"})
    done = await front_door.client.run("web", "-o", "SetEnv=MINE=mine", 'echo "$GIVEN|$MINE"')
    assert done.stdout == b"x\n\xe9 'y'|mine\n"
    assert "GIVEN" not in (await front_door.client.run("cli", "info web --json")).text


async def test_a_session_is_told_that_it_came_by_ssh_and_not_from_where(
    front_door: Entrance,
) -> None:
    settings = ["-o", "SetEnv=SSH_CLIENT=evil"]
    done = await front_door.client.run("web", *settings, 'echo "$SSH_CLIENT|$SSH_CONNECTION"')
    assert done.text == "UNKNOWN 65535 65535|UNKNOWN 65535 UNKNOWN 65535\n"


async def test_a_command_of_any_bytes_arrives_as_it_is(front_door: Entrance) -> None:
    every = bytes(byte for byte in range(1, 256) if byte not in b"'")
    command = b"printf %s '" + every + b"'"
    done = await front_door.client.run("web", command.decode("utf-8", "surrogateescape"))
    assert (done.status, done.stdout, done.errors) == (0, every, "")
    latin = "touch /tmp/n\udce4me.$$ && ls /tmp/n?me.$$ && rm /tmp/n?me.$$"
    done = await front_door.client.run("web", f"export LC_ALL=C; {latin}")
    assert done.stdout.startswith(b"/tmp/n\xe4me.")


async def test_a_command_of_ours_that_is_no_text_is_refused_in_words(front_door: Entrance) -> None:
    done = await front_door.client.run("cli", "info \udcff")
    assert (done.status, done.stdout) == (255, b"")
    assert "not UTF-8" in done.errors


async def test_an_empty_command_is_not_a_shell(front_door: Entrance) -> None:
    done = await front_door.client.run("web", " ", stdin=b"echo read by a shell\n")
    assert (done.status, done.stdout) == (0, b"")


async def test_a_shell_without_a_terminal_reads_its_script(front_door: Entrance) -> None:
    done = await front_door.client.shell("web", "-T", stdin=b"echo one\nexit 7\n")
    assert (done.status, done.stdout) == (7, b"one\n")


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_fast_commands_over_one_connection_lose_nothing(front_door: Entrance) -> None:
    client = front_door.client
    async with client.master("web") as shared:
        for number in range(300):
            done = await client.run("web", *shared, f"echo ok {number}; echo e{number} >&2; exit 5")
            assert (done.status, done.stdout) == (5, f"ok {number}\n".encode())
            assert done.stderr == f"e{number}\n".encode()


@pytest.mark.slow
async def test_a_hundred_megabytes_of_output_are_the_same(
    front_door: Entrance, tmp_path: Path
) -> None:
    source, copy = tmp_path / "source", tmp_path / "copy"
    make = f"head -c {100 * MIB} /dev/urandom > {source}"
    assert (await run(["bash", "-c", make])).status == 0
    command = " ".join(f"'{word}'" for word in front_door.client.ssh("web", f"cat {source}"))
    done = await run(["bash", "-c", f"{command} > {copy}"])
    assert done.status == 0
    assert (await run(["cmp", str(source), str(copy)])).status == 0


async def test_a_slow_reader_holds_the_command_and_not_the_daemon(front_door: Entrance) -> None:
    """What is not read stays in windows of bounded size; then all of it arrives."""
    size = 24 * MIB
    counter = f"head -c {size} /dev/zero | tee /dev/stderr 2>/dev/null"
    async with running(front_door.client.ssh("web", counter)) as process:
        assert process.stdout is not None
        first = await process.stdout.readexactly(65536)
        # Meanwhile the front door serves others.
        done = await front_door.client.run("web", "echo still here")
        assert done.stdout == b"still here\n"
        rest = await process.stdout.read()
        assert len(first) + len(rest) == size
        assert await process.wait() == 0


async def test_many_sessions_of_one_connection_run_at_once(front_door: Entrance) -> None:
    client = front_door.client
    async with client.master("web") as shared:
        runs = (client.run("web", *shared, f"cat; echo {n}", stdin=b"x" * MIB) for n in range(8))
        for number, done in enumerate(await asyncio.gather(*runs)):
            assert done.stdout == b"x" * MIB + f"{number}\n".encode()
            assert done.status == 0


async def test_a_box_that_dies_ends_its_sessions_with_words(front_door: Entrance) -> None:
    async with running(front_door.client.ssh("web", "echo up; exec sleep 600")) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert await process.stdout.readline() == b"up\n"
        box = (await front_door.store.all_boxes())[0]
        front_door.backend.kill(box.id)
        assert b"connection to the box was lost" in await process.stderr.read()
        assert await process.wait() == 255


async def test_a_box_that_dies_before_its_output_is_waited_for_is_named_too(
    front_door: Entrance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had opened the session, and died before the door looked."""
    client = front_door.client
    assert (await client.run("web", "true")).status == 0
    (box,) = await front_door.store.all_boxes()

    async def lost(opening: Awaitable[Pair], late: Callable[[Pair], None]) -> Pair:
        pair = await opened(opening, late)
        front_door.backend.kill(box.id)
        await pair[0].wait_closed()
        return pair

    monkeypatch.setattr(relay, "opened", lost)
    done = await client.run("web", "exec sleep 600")
    assert done.status == 255
    assert "connection to the box was lost" in done.errors


async def test_a_box_that_is_removed_says_so_to_its_sessions(front_door: Entrance) -> None:
    async with running(front_door.client.ssh("web", "echo up; exec sleep 600")) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert await process.stdout.readline() == b"up\n"
        await front_door.lifecycle.remove((await front_door.store.all_boxes())[0])
        assert b"box web was removed" in await process.stderr.read()
        assert await process.wait() == 255


async def test_attachments_are_counted_for_each_channel(front_door: Entrance) -> None:
    client = front_door.client
    async with client.master("web") as shared, running(client.ssh("web", *shared, "cat")) as one:
        async with running(client.ssh("web", *shared, "cat")) as two:
            box = await _wait_for_holds(front_door, 2)
            await end_input(two)
        await until(lambda: front_door.lifecycle.attachments.count(box) == 1)
        assert front_door.lifecycle.attachments.why(box) == {"command": 1}
        await end_input(one)
    await until(lambda: front_door.lifecycle.attachments.count(box) == 0)


async def test_channels_of_a_throwaway_connection_share_its_box(front_door: Entrance) -> None:
    client = front_door.client
    async with client.master("_") as shared, running(client.ssh("_", *shared, "cat")) as one:
        await _wait_for_holds(front_door, 1)
        done = await client.run("_", *shared, "echo second")
        assert done.stdout == b"second\n"
        assert len(await front_door.store.all_boxes()) == 1
        await end_input(one)
    await _wait_for_no_box(front_door)


async def test_channels_of_a_fresh_connection_share_its_box(front_door: Entrance) -> None:
    client = front_door.client
    await client.run("web", "true")
    (old,) = await front_door.store.all_boxes()
    async with client.master("web+") as shared:
        for _ in range(2):
            assert (await client.run("web+", *shared, "true")).status == 0
        (new,) = await front_door.store.all_boxes()
        assert new.id != old.id
        assert (await client.run("web+", *shared, "true")).status == 0
        assert [box.id for box in await front_door.store.all_boxes()] == [new.id]


async def test_another_host_name_form_reaches_the_same_box(front_door: Entrance) -> None:
    client = front_door.client
    await client.run("web", "true")
    (box,) = await front_door.store.all_boxes()
    for user in ("web", "WEB", f"session-{box.id[:6]}", "session-web", f"session-{box.id}"):
        done = await run(["ssh", *client.options(), "-l", user, HOST, "echo here"])
        assert done.stdout == b"here\n", user
    assert len(await front_door.store.all_boxes()) == 1


async def _wait_for_holds(front_door: Entrance, count: int) -> str:
    async with asyncio.timeout(30):
        while True:
            for box in await front_door.store.all_boxes():
                if front_door.lifecycle.attachments.count(box.id) == count:
                    return box.id
            await asyncio.sleep(0.01)


async def _wait_for_no_box(front_door: Entrance) -> None:
    async with asyncio.timeout(30):
        while await front_door.store.all_boxes():  # noqa: ASYNC110 - the store has no event
            await asyncio.sleep(0.01)
