"""Commands through the tunnel: a real agent process, a real registry."""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from boxd.boxes.commands.exec import TIMEOUT_CODE, ExecRun
from boxd.errors import Unavailable
from boxd.tunnel.channel import WINDOW, ExitStatus, Terminal
from tests.harness.agents.agent import local_agent
from tests.harness.agents.ignored import ignored_signals, ignoring
from tests.harness.wait import DEADLINE, until

if TYPE_CHECKING:
    from boxd.tunnel.channel import Exec
    from tests.harness.agents.agent import LocalBox

PTY = Terminal("xterm-256color", (80, 24))
PIPE = 1 << 20
"""More than a pipe holds."""
WRITER = """
import os, sys
written, told = 0, os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)
while True:
    written += os.write(1, bytes(4096))
    os.pwrite(told, b"%d" % written, 0)
"""


async def collect_until(running: Exec, marker: bytes) -> bytes:
    """Reads output until the marker shows up."""
    seen = b""
    async with asyncio.timeout(20):
        async for _, data in running.output():
            seen += data
            if marker in seen:
                break
    assert marker in seen
    return seen


def alive(pid: int) -> bool:
    """Whether a process exists and is more than a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def test_fast_commands_lose_no_byte(local_box: LocalBox) -> None:
    async def one(number: int) -> None:
        done = await local_box.run(f"printf 'out {number}\\n'; printf 'err {number}\\n' >&2")
        assert done.stdout == f"out {number}\n".encode()
        assert done.stderr == f"err {number}\n".encode()
        assert done.status == ExitStatus(0, None)

    for start in range(0, 300, 10):
        await asyncio.gather(*(one(number) for number in range(start, start + 10)))


async def test_large_output_arrives_whole(local_box: LocalBox) -> None:
    size = 100 << 20
    running = await (await local_box.tunnel()).start(
        f"openssl enc -aes-128-ctr -K {'0' * 32} -iv {'0' * 32} -in /dev/zero 2>/dev/null"
        f" | head -c {size}"
        if Path("/usr/bin/openssl").exists()
        else f"head -c {size} /dev/zero"
    )
    digest, length = hashlib.sha256(), 0
    async for _, data in running.output():
        digest.update(data)
        length += len(data)
    assert length == size
    again = await local_box.run(
        f"openssl enc -aes-128-ctr -K {'0' * 32} -iv {'0' * 32} -in /dev/zero 2>/dev/null"
        f" | head -c {size} | sha256sum"
        if Path("/usr/bin/openssl").exists()
        else f"head -c {size} /dev/zero | sha256sum"
    )
    assert again.stdout.split()[0].decode() == digest.hexdigest()


async def test_slow_reader_holds_the_command(local_box: LocalBox) -> None:
    progress = local_box.root / "progress"
    running = await (await local_box.tunnel()).start(
        f"i=0; while [ $i -lt 400 ]; do head -c 65536 /dev/zero; i=$((i+1)); echo $i > {progress};"
        " done"
    )
    output = running.output()
    first = await anext(output)
    assert first[0] == "stdout"
    seen = -1
    async with asyncio.timeout(20):
        # Nobody reads: the counter comes to a stand.
        while (now := int(progress.read_text() or 0) if progress.exists() else 0) != seen:
            seen = now
            await asyncio.sleep(0.3)
    assert seen * 65536 < 2 * WINDOW + 2 * PIPE
    total = len(first[1])
    async for _, data in output:
        total += len(data)
    assert total == 400 * 65536


async def test_input_is_streamed_and_ends(local_box: LocalBox) -> None:
    running = await (await local_box.tunnel()).start("sha256sum")
    digest = hashlib.sha256()
    for number in range(200):
        block = number.to_bytes(4, "big") * 16384
        digest.update(block)
        await running.write(block)
    running.write_eof()
    output = b"".join([data async for _, data in running.output()])
    assert output.split()[0].decode() == digest.hexdigest()


async def test_input_of_a_command_that_does_not_read_is_bounded(local_box: LocalBox) -> None:
    running = await (await local_box.tunnel()).start("sleep 600")
    sent = 0
    with suppress(TimeoutError):
        async with asyncio.timeout(2):
            while sent < 64 << 20:
                await running.write(bytes(65536))
                sent += 65536
    assert sent < 4 << 20
    assert (await local_box.run("echo others go on")).stdout == b"others go on\n"
    await running.end()
    assert await running.wait() == ExitStatus(None, "HUP")


@pytest.mark.parametrize(
    ("command", "status"),
    [
        ("exit 0", ExitStatus(0, None)),
        ("exit 3", ExitStatus(3, None)),
        ("exit 255", ExitStatus(255, None)),
        ("kill -TERM $$", ExitStatus(None, "TERM")),
        ("kill -KILL $$", ExitStatus(None, "KILL")),
        ("no-such-command-at-all 2>/dev/null", ExitStatus(127, None)),
    ],
)
async def test_exit_is_told(local_box: LocalBox, command: str, status: ExitStatus) -> None:
    assert (await local_box.run(command)).status == status


async def test_stderr_after_stdout_is_closed(local_box: LocalBox) -> None:
    done = await local_box.run("echo out; exec >&-; head -c 200000 /dev/zero >&2; exit 5")
    assert done.stdout == b"out\n"
    assert len(done.stderr) == 200000
    assert done.status == ExitStatus(5, None)


async def test_background_child_does_not_hold_the_end_back(local_box: LocalBox) -> None:
    async with asyncio.timeout(10):
        done = await local_box.run("sleep 30 & echo $!; exit 4")
    assert done.status == ExitStatus(4, None)
    child = int(done.stdout)
    # It was left behind on purpose.
    assert alive(child)
    os.kill(child, signal.SIGKILL)


async def test_writing_background_child_does_not_hold_the_end_back(local_box: LocalBox) -> None:
    async with asyncio.timeout(20):
        done = await local_box.run("yes & echo $! >&2; exit 4")
    assert done.status == ExitStatus(4, None)
    with suppress(ProcessLookupError):
        os.kill(int(done.stderr), signal.SIGKILL)


@pytest.mark.parametrize("terminal", [None, PTY])
async def test_sessions_end_before_the_agent_when_memory_is_out(
    local_box: LocalBox, terminal: Terminal | None
) -> None:
    """Also what a session starts: the shell was told before it started anything."""
    wait = "until [ $(cat /proc/self/oom_score_adj) = 1000 ]; do sleep 0.05; done; echo now"
    done = await local_box.run(wait, terminal=terminal)
    assert done.stdout.strip() == b"now"
    assert local_box.process is not None
    own = Path(f"/proc/{local_box.process.pid}/oom_score_adj").read_text()
    assert own == Path("/proc/self/oom_score_adj").read_text()


async def test_who_waits_for_a_tunnel_that_is_listened_for_anew_gets_it() -> None:
    async with local_agent() as box:
        waiting = asyncio.create_task(box.tunnel())
        await asyncio.sleep(0)
        await box.open()
        await box.start()
        assert not (await waiting).closed


async def test_environment(local_box: LocalBox) -> None:
    done = await local_box.run(
        "env", env={"GIVEN": "a b=c\n'x'", "LANG": "de_DE.UTF-8", "not a name": "x"}
    )
    lines = done.stdout.decode()
    assert "GIVEN=a b=c\n'x'" in lines
    assert "FROM_IMAGE=yes" in lines
    assert "LANG=de_DE.UTF-8" in lines
    assert "HOME=/root" in lines
    assert "not a name" not in lines
    assert "PYTHON" not in lines


async def test_a_terminal_with_resize_and_interrupt(local_box: LocalBox) -> None:
    running = await (await local_box.tunnel()).start(
        "stty size; trap 'stty size' WINCH; tty; echo ready; cat", terminal=PTY
    )
    assert b"24 80" in await collect_until(running, b"ready\r\n")
    await running.write(b"typed\n")
    await collect_until(running, b"typed\r\ntyped\r\n")
    await running.write(b"\x03")
    async for _ in running.output():
        pass
    status = await running.wait()
    assert status in (ExitStatus(None, "INT"), ExitStatus(130, None))


async def test_resize_reaches_the_program(local_box: LocalBox) -> None:
    running = await (await local_box.tunnel()).start(
        "echo ready; read line; stty size", terminal=PTY
    )
    await collect_until(running, b"ready\r\n")
    running.resize(132, 43)
    await running.write(b"\n")
    await collect_until(running, b"43 132\r\n")
    await running.end()


async def test_login_shell_on_a_terminal(local_box: LocalBox) -> None:
    running = await (await local_box.tunnel()).start(None, terminal=PTY)
    await running.write(b"echo $TERM $0 $((6*7)); exit 9\n")
    seen = b"".join([data async for _, data in running.output()])
    assert b"xterm-256color" in seen
    assert b"42" in seen
    assert await running.wait() == ExitStatus(9, None)


async def test_end_of_input_reaches_a_program_on_a_terminal(local_box: LocalBox) -> None:
    async with asyncio.timeout(20):
        done = await local_box.run("cat; echo over", stdin=b"half a line", terminal=PTY)
    assert done.stdout.endswith(b"over\r\n")


@pytest.mark.parametrize("name", ["INT", "TERM", "USR1", "KILL"])
async def test_signals_reach_the_command(local_box: LocalBox, name: str) -> None:
    running = await (await local_box.tunnel()).start("exec sleep 600")
    running.send_signal(name)
    async for _ in running.output():
        pass
    assert await running.wait() == ExitStatus(None, name)


async def test_unknown_signals_are_ignored(local_box: LocalBox) -> None:
    running = await (await local_box.tunnel()).start("read line; echo $line")
    for name in ("NOSUCH", "", "_DFL", "SIGTERM"):
        running.send_signal(name)
    await running.write(b"lives\n")
    await collect_until(running, b"lives\n")
    await running.end()


@pytest.mark.parametrize("terminal", [None, PTY])
async def test_closing_ends_the_whole_group(local_box: LocalBox, terminal: Terminal | None) -> None:
    running = await (await local_box.tunnel()).start(
        "trap '' HUP; sleep 600 & echo $! $$ ready; wait", terminal=terminal
    )
    seen = await collect_until(running, b"ready")
    pids = [int(word) for word in seen.split()[:2]]
    assert all(alive(pid) for pid in pids)
    await running.end()
    await until(lambda: not any(alive(pid) for pid in pids))


@pytest.mark.parametrize("ended", [False, True])
async def test_a_command_with_unread_input_ends_with_its_tunnel(
    local_box: LocalBox, ended: bool
) -> None:
    """Whether or not the end of the input has come as well."""
    tunnel = await local_box.tunnel()
    running = await tunnel.start("echo $$ ready; exec sleep 600")
    pid = int((await collect_until(running, b"ready")).split()[0])
    await running.write(bytes(4 * 65536))
    if ended:
        running.write_eof()
    assert (await local_box.run("echo after")).stdout == b"after\n", "it has all come by now"
    tunnel.connection.abort()
    await until(lambda: not alive(pid))


async def test_stubborn_commands_are_killed(local_box: LocalBox) -> None:
    running = await (await local_box.tunnel()).start(
        "trap '' HUP TERM INT; echo $$ ready; while :; do sleep 1; done"
    )
    pid = int((await collect_until(running, b"ready")).split()[0])
    await running.end()
    await until(lambda: not alive(pid), 20)


async def test_agent_that_ends_hangs_its_commands_up(local_box: LocalBox) -> None:
    running = await (await local_box.tunnel()).start("echo $$ ready; sleep 600")
    pid = int((await collect_until(running, b"ready")).split()[0])
    assert local_box.process is not None
    local_box.process.terminate()
    async with asyncio.timeout(20):
        assert await local_box.process.wait() == 0
    assert not alive(pid)
    with pytest.raises(Unavailable):
        await running.wait()


async def test_output_that_goes_with_the_tunnel_is_not_called_all_of_it(
    local_box: LocalBox,
) -> None:
    """The command has ended with 0, and most of its output waits for the reader."""
    tunnel = await local_box.tunnel()
    running = await tunnel.start(f"head -c {WINDOW - 1} /dev/zero")
    await until(lambda: running.ended)
    await tunnel.close()
    read = b"".join([data async for _, data in running.output()])
    assert len(read) < WINDOW - 1
    with pytest.raises(Unavailable, match="lost before"):
        await running.wait()


@pytest.mark.parametrize("size", [WINDOW - 1, WINDOW + 2 * 65536])
async def test_a_command_that_has_ended_is_in_time_however_late_it_is_read(
    local_box: LocalBox, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """Also when part of its output is still in the box."""
    monkeypatch.setattr("boxd.boxes.commands.exec.KILL_AFTER_S", 0.5)
    running = await (await local_box.tunnel()).start(f"head -c {size} /dev/zero; exit 3")
    await until(lambda: running.ended)
    limit = asyncio.get_running_loop().time() + 4
    read = 0

    async def take(stream: str, data: bytes) -> None:
        nonlocal read
        await until(lambda: asyncio.get_running_loop().time() > limit)
        monkeypatch.setattr("boxd.boxes.commands.exec.KILL_AFTER_S", DEADLINE)
        assert stream == "stdout"
        read += len(data)

    assert await ExecRun(running, timeout_s=1).pump(take) == 3
    assert read == size


async def test_a_command_that_nobody_reads_is_ended_in_time_and_read_whole(
    local_box: LocalBox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It writes for ever. All that it has written is there before its end is told."""
    monkeypatch.setattr("boxd.boxes.commands.exec.KILL_AFTER_S", 0.5)
    pid, wrote = tmp_path / "pid", tmp_path / "wrote"
    running = await (await local_box.tunnel()).start(
        f"echo $$ > {pid}; exec {sys.executable} -c '{WRITER}' {wrote}"
    )
    await until(lambda: wrote.exists() and int(wrote.read_text() or 0) > WINDOW)
    limit = asyncio.get_running_loop().time() + 4
    read, said = 0, b""

    async def take(stream: str, data: bytes) -> None:
        nonlocal read, said
        await until(lambda: not alive(int(pid.read_text())))
        await until(lambda: asyncio.get_running_loop().time() > limit)
        monkeypatch.setattr("boxd.boxes.commands.exec.KILL_AFTER_S", DEADLINE)
        if stream == "stdout":
            read += len(data)
        else:
            said += data

    assert await ExecRun(running, timeout_s=1).pump(take) == TIMEOUT_CODE
    assert 0 <= read - int(wrote.read_text()) <= 4096, "it may have been ended before it told"
    assert said == b"boxd: the command was ended after its timeout of 1 s\n"


async def test_commands_with_any_text(local_box: LocalBox) -> None:
    text = "ÄÖ €\t'\"$(echo no)`x`\\ 🎈"
    done = await local_box.run("cat <<'EOF'\n" + text + "\nEOF")
    assert done.stdout.decode() == text + "\n"


async def test_output_may_be_any_bytes(local_box: LocalBox) -> None:
    done = await local_box.run("head -c 65536 /dev/urandom | tee /dev/stderr")
    assert len(done.stdout) == 65536
    assert done.stdout == done.stderr


async def test_a_command_ignores_no_signal_that_its_agent_inherited() -> None:
    """A shell in the background ignores SIGINT and SIGQUIT, and so do its programs."""
    async with local_agent() as box:
        with ignoring(signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
            await box.start()
        ran = await box.run("grep ^SigIgn /proc/self/status")
    assert ignored_signals(ran.stdout) == set()
