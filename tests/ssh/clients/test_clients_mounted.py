"""A directory of a box, mounted on the user's machine by sshfs."""

from __future__ import annotations

import asyncio
import hashlib
import os
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from tests.harness.servers.fault_proxy import FaultProxy
from tests.harness.ssh.openssh import HOST, Client, running
from tests.harness.ssh.sshfs import working_in
from tests.harness.wait import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from tests.harness.ssh.frontdoor import Entrance

MIB = 1 << 20


@pytest.fixture
def detour(front_door: Entrance) -> Iterator[FaultProxy]:
    """What stands between the client and the front door."""
    proxy = FaultProxy((HOST, 0), (HOST, front_door.door.port))
    yield proxy
    proxy.close()


@asynccontextmanager
async def mounted(
    client: Client, there: Path, work: str
) -> AsyncIterator[asyncio.subprocess.Process]:
    """A script that works in the mount of `there`; ends with status 0 when the mount is gone."""
    there.mkdir()
    ssh = ["ssh", *client.options(), "-o", "ServerAliveInterval=2"]
    command = working_in(f"web@{HOST}:{there}", ssh, client.directory / "mount", work)
    async with running(command) as process:
        yield process


async def test_a_mounted_directory_is_worked_in(front_door: Entrance, tmp_path: Path) -> None:
    there = tmp_path / "there"
    work = """
        echo hello > a; mkdir -p deep/er; mv a deep/er/b; cat deep/er/b
        ln -s b deep/er/l; readlink deep/er/l; cat deep/er/l
        echo more >> deep/er/b; chmod 640 deep/er/b; stat -c %a deep/er/b
        truncate -s 3 deep/er/b; cat deep/er/b; echo
        touch -d @1000000000 deep/er/b; stat -c %Y deep/er/b
        head -c 5M /dev/urandom | tee big | sha256sum; sha256sum < big
        dd if=/dev/zero of=big bs=1 count=4 seek=1000000 conv=notrunc status=none
        rm -r deep; ls; df --output=size . | tail -n 1
        cat missing || echo no
    """
    async with mounted(front_door.client, there, work) as process, asyncio.timeout(60):
        stdout, stderr = await process.communicate()
    assert process.returncode == 0, stderr
    lines = stdout.decode().splitlines()
    assert lines[:6] == ["hello", "b", "hello", "640", "hel", "1000000000"]
    written, read, listed, size, missing = lines[6:]
    assert (written, listed, missing) == (read, "big", "no")
    disk = os.statvfs(there)
    assert int(size) == disk.f_blocks * disk.f_frsize // 1024
    data = (there / "big").read_bytes()
    assert len(data) == 5 * MIB
    assert data[1000000:1000004] == bytes(4)
    assert hashlib.sha256(data).hexdigest() != written.split()[0], "four bytes are others"


async def test_a_mount_comes_back_after_its_connection_was_cut(
    front_door: Entrance, detour: FaultProxy, tmp_path: Path
) -> None:
    assert isinstance(detour.listen, tuple)
    client = Client(tmp_path / "user", detour.listen[1], front_door.door.host_key)
    work = """
        echo one > a; echo ready; read -r _
        until cat a 2>/dev/null; do sleep 0.05; done
        echo two >> a; cat a
    """
    there = tmp_path / "there"
    async with mounted(client, there, work) as process, asyncio.timeout(60):
        assert process.stdin is not None
        assert process.stdout is not None
        assert await process.stdout.readline() == b"ready\n"
        detour.reset()
        process.stdin.write(b"\n")
        assert await process.stdout.read() == b"one\none\ntwo\n"
        await process.wait()
    assert process.returncode == 0
    assert (there / "a").read_text() == "one\ntwo\n"
    assert detour.connections >= 2
    (box,) = await front_door.store.all_boxes()
    await until(lambda: front_door.lifecycle.attachments.count(box.id) == 0)
