"""The process that serves: SIGHUP ends it when its terminal is gone and else not; it has files for
all connections that are let in."""

from __future__ import annotations

import os
import pty
import re
import resource
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from boxd.ssh.connection.limits import MAX_CONNECTIONS, PENDING_KNOWN, PENDING_UNKNOWN
from tests.harness.ssh.openssh import HOST, Client

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.harness.service.daemon import Daemon

PROGRAM = """
import asyncio, os, signal, sys
from boxd.cli import hangup

async def main():
    over = asyncio.Event()
    told = os.open(sys.argv[1], os.O_WRONLY)
    tell = lambda text: os.write(told, text)
    meaning = hangup.translator()
    def act():
        if meaning() == signal.SIGTERM:
            tell(b"stop\\n")
            over.set()
        else:
            tell(b"reread\\n")
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, act)
    tell(b"ready\\n")
    await over.wait()

asyncio.run(main())
"""


@pytest.fixture
def told(tmp_path: os.PathLike[str]) -> Iterator[tuple[str, int]]:
    """A pipe in the file system and its reading end."""
    path = os.path.join(tmp_path, "told")
    os.mkfifo(path)
    reader = os.open(path, os.O_RDWR)
    yield path, reader
    os.close(reader)


@contextmanager
def running(
    words: list[str], stdin: int = subprocess.DEVNULL, *, start_new_session: bool = False
) -> Iterator[subprocess.Popen[bytes]]:
    """The program, ended at the end."""
    process = subprocess.Popen(words, stdin=stdin, start_new_session=start_new_session)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def line(reader: int) -> bytes:
    """The next line; blocks."""
    got = b""
    while not got.endswith(b"\n"):
        got += os.read(reader, 1)
    return got


def test_a_terminal_that_closes_ends_it_and_a_signal_does_not(told: tuple[str, int]) -> None:
    path, reader = told
    terminal, inside = pty.openpty()
    words = ["setsid", "--ctty", sys.executable, "-c", PROGRAM, path]
    with running(words, stdin=inside) as process:
        os.close(inside)
        assert line(reader) == b"ready\n"
        process.send_signal(signal.SIGHUP)
        assert line(reader) == b"reread\n"
        os.close(terminal)
        assert line(reader) == b"stop\n"
        assert process.wait() == 0


def test_without_a_terminal_nothing_ends_it(told: tuple[str, int]) -> None:
    path, reader = told
    words = [sys.executable, "-c", PROGRAM, path]
    with running(words, start_new_session=True) as process:
        assert line(reader) == b"ready\n"
        for _ in range(2):
            process.send_signal(signal.SIGHUP)
            assert line(reader) == b"reread\n"


def test_the_service_goes_on_and_says_that_it_was_asked(daemon: Daemon) -> None:
    assert daemon.process is not None
    daemon.process.send_signal(signal.SIGHUP)
    scan = ["ssh-keyscan", "-p", str(daemon.ssh_port), HOST]
    assert b"ssh-ed25519" in subprocess.run(scan, capture_output=True, check=True).stdout
    assert daemon.process.poll() is None
    assert "SIGHUP: there are no settings to reload" in daemon.log.read_text()


def test_connections_run_into_limits_before_files_do(daemon: Daemon) -> None:
    """Of the usual 1,024 files strangers could take all."""
    assert daemon.process is not None
    told = Path(f"/proc/{daemon.process.pid}/limits").read_text()
    found = re.search(r"^Max open files +([0-9]+)", told, re.M)
    assert found is not None
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    assert int(found[1]) >= min(2 * (MAX_CONNECTIONS + PENDING_KNOWN + PENDING_UNKNOWN), hard)


def test_administrators_are_read_anew_and_a_bad_file_changes_nothing(
    daemon: Daemon, tmp_path: Path
) -> None:
    """The last test of the module: the daemon starts again, and ends."""
    first, second = (_client(tmp_path / name, daemon) for name in ("first", "second"))
    file = tmp_path / "administrators"
    file.write_bytes(first.key.with_suffix(".pub").read_bytes())
    daemon.end(signal.SIGTERM)
    daemon.flags.append(f"--admin-keys={file}")
    daemon.start()
    first.port = second.port = daemon.ssh_port
    assert _types(first, "owners") == 0
    assert _types(second, "owners") == 255
    file.write_bytes(second.key.with_suffix(".pub").read_bytes())
    _hang_up(daemon, "administrators' keys reloaded: 1")
    assert _types(first, "owners") == 255
    assert _types(second, "audit") == 0
    file.write_bytes(b"root " + first.key.with_suffix(".pub").read_bytes())
    _hang_up(daemon, "line 1: options before a key are not supported")
    assert " ERROR " in daemon.log.read_text()
    assert _types(first, "stat") == 255
    assert _types(second, "stat") == 0
    daemon.end(signal.SIGTERM)
    refused = daemon.run("serve", f"--admin-keys={file}", "--ssh-addr=127.0.0.1:0")
    assert refused.returncode == 2, refused.stderr
    assert f"boxd: --admin-keys: {file}, line 1: options" in refused.stderr


def _client(directory: Path, daemon: Daemon) -> Client:
    scan = ["ssh-keyscan", "-p", str(daemon.ssh_port), "-t", "ed25519", HOST]
    found = subprocess.run(scan, capture_output=True, check=True, text=True).stdout
    return Client(directory, daemon.ssh_port, found.partition(" ")[2].strip())


def _types(client: Client, line: str) -> int:
    """Exit status of a command of administrators."""
    # Known by the port of its first start.
    known = (client.directory / "known_hosts").read_text().split()[0]
    options = [*client.options(), "-o", f"HostKeyAlias={known}"]
    return subprocess.run(["ssh", *options, "-l", "sudo", HOST, line], check=False).returncode


def _hang_up(daemon: Daemon, said: str) -> None:
    """Signals the daemon, and waits until it has said something."""
    assert daemon.process is not None
    daemon.process.send_signal(signal.SIGHUP)
    deadline = time.monotonic() + 60
    while said not in daemon.log.read_text():
        assert time.monotonic() < deadline, daemon.log.read_text()
        time.sleep(0.02)
