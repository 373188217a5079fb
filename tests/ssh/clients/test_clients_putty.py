"""PuTTY's programs, which Windows' users have: plink, pscp and psftp."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.harness.ssh.forwards import free_port
from tests.harness.ssh.openssh import HOST, run

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.harness.ssh.frontdoor import Entrance

    Putty = Callable[..., list[str]]

MIB = 1 << 20
BY_TERM = 128
"""What plink exits with for a command that was ended by a signal."""


@pytest.fixture
async def putty(front_door: Entrance) -> Putty:
    """The command line of one of its programs: name, words after the connection's options."""
    user = front_door.client
    key, known = user.directory / "key.ppk", user.directory / "known_hosts"
    made = await run(["puttygen", str(user.key), "-O", "private", "-o", str(key)])
    assert made.status == 0
    host_key = (await run(["ssh-keygen", "-l", "-f", str(known)])).text.split()[1]
    options = ["-batch", "-i", str(key), "-P", str(user.port), "-hostkey", host_key, "-l", "web"]
    return lambda program, *words: [program, *options, *words]


async def test_putty_runs_commands(putty: Putty) -> None:
    data = os.urandom(2 * MIB)
    done = await run(putty("plink", HOST, "cat; echo err >&2; exit 3"), stdin=data)
    assert (done.status, done.stdout, done.stderr) == (3, data, b"err\n")
    assert (await run(putty("plink", HOST, "kill -TERM $$"))).status == BY_TERM
    closed = free_port()
    done = await run(putty("plink", "-nc", f"{HOST}:{closed}", HOST))
    assert f"dial {HOST}:{closed}: connection refused" in done.errors


@pytest.mark.parametrize("protocol", ["-sftp", "-scp"])
async def test_putty_copies_both_ways(putty: Putty, tmp_path: Path, protocol: str) -> None:
    sent, there, back = tmp_path / "sent", tmp_path / "there", tmp_path / "back"
    for folder in (sent, there, back):
        folder.mkdir()
    (sent / "data").write_bytes(os.urandom(2 * MIB + 1))
    (sent / "empty").touch()
    for source, target in ((str(sent), f"{HOST}:{there}"), (f"{HOST}:{there}/sent", str(back))):
        done = await run(putty("pscp", "-q", "-r", protocol, source, target))
        assert (done.status, done.errors) == (0, "")
    assert (back / "sent" / "data").read_bytes() == (sent / "data").read_bytes()
    assert (back / "sent" / "empty").stat().st_size == 0


async def test_putty_works_with_files(putty: Putty, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(os.urandom(MIB))
    batch = tmp_path / "batch"
    batch.write_text(f"cd {tmp_path}\nlcd {tmp_path}\nmkdir d\nput a d/x\nmv d/x d/y\nget d/y z\n")
    done = await run(putty("psftp", "-b", str(batch), HOST))
    assert done.status == 0, done
    assert (tmp_path / "z").read_bytes() == (tmp_path / "a").read_bytes()
