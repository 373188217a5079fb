"""What editors do that work in a box: a long script on standard input, a server that it leaves
behind, forwardings of every kind to it, and a connection that breaks.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest

from tests.harness.servers.fault_proxy import FaultProxy
from tests.harness.ssh.forwards import free_port, talk
from tests.harness.ssh.openssh import HOST, Client, running
from tests.harness.wait import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.harness.ssh.frontdoor import Entrance

SERVER = """
import asyncio, os, sys

async def serve(reader, writer):
    data = await reader.read()
    writer.write(b"%d %s" % (os.getpid(), data))
    writer.close()
    if data == b"end":
        over.set()

async def main():
    global over
    over = asyncio.Event()
    tcp = await asyncio.start_server(serve, "127.0.0.1", 0)
    unix = await asyncio.start_unix_server(serve, os.path.abspath("socket"))
    with open("port.new", "w") as file:
        file.write(str(tcp.sockets[0].getsockname()[1]))
    os.rename("port.new", "port")
    async with asyncio.timeout(300):
        await over.wait()

asyncio.run(main())
"""
"""Answers with its process id; ends when it is told."""

BOOTSTRAP = """
set -e
cd {place}
if ! [ -e port ]; then
    cat > server.py <<'END OF SERVER'
{server}
END OF SERVER
    nohup setsid {python} server.py </dev/null >log 2>&1 &
    until [ -e port ]; do sleep 0.05; done
fi
echo "listening on $(cat port)"
{filling}
read -r line; echo "told: $line"
"""
"""As an editor's: finds its server or leaves one behind, says where, and stays."""

LONG = "\n".join(f": '{number:05} {'x' * 90}'" for number in range(2000))
"""200 KB that a shell reads."""


@dataclass
class Editor:
    """An editor's place in the box, and its way there."""

    client: Client
    place: Path
    detour: FaultProxy

    @property
    def socket(self) -> Path:
        """Where its server listens, too."""
        return self.place / "socket"

    @asynccontextmanager
    async def connected(self, *options: str) -> AsyncIterator[asyncio.subprocess.Process]:
        """`ssh -T web bash -s` with the long script, once the server listens."""
        script = BOOTSTRAP.format(
            place=self.place, server=SERVER, python=sys.executable, filling=LONG
        )
        command = self.client.ssh("web", "-T", *options, "bash -s")
        async with running(command) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(script.encode())
            async with asyncio.timeout(60):
                line = await process.stdout.readline()
            assert line == f"listening on {self.port}\n".encode()
            yield process

    @property
    def port(self) -> int:
        """Where its server listens."""
        return int((self.place / "port").read_text())


@pytest.fixture
async def editor(front_door: Entrance) -> AsyncIterator[Editor]:
    """Its server has ended afterwards."""
    detour = FaultProxy((HOST, 0), (HOST, front_door.door.port))
    assert isinstance(detour.listen, tuple)
    with TemporaryDirectory(prefix="editor-") as name:  # short: paths of sockets hold 107 bytes
        client = Client(Path(name) / "user", detour.listen[1], front_door.door.host_key)
        place = Path(name) / "place"
        place.mkdir()
        editor = Editor(client, place, detour)
        yield editor
        if editor.socket.exists():
            answer = await talk(editor.socket, b"end")
            process = Path("/proc") / answer.split()[0].decode()
            await until(lambda: not process.exists())
    detour.close()


async def through_socks(socks: int, host: str, port: int, data: bytes) -> bytes:
    """One exchange through a SOCKS 5 proxy, to which the name is left; nothing when refused."""
    name = host.encode()
    reader, writer = await asyncio.open_connection(HOST, socks)
    try:
        writer.write(b"\5\1\0")
        assert await reader.readexactly(2) == b"\5\0"
        writer.write(b"\5\1\0\3" + bytes([len(name)]) + name + port.to_bytes(2, "big"))
        head = await reader.read(10)
        if not head:  # how OpenSSH refuses
            return b""
        assert head[:2] == b"\5\0"
        writer.write(data)
        writer.write_eof()
        return await reader.read()
    finally:
        writer.close()
        await writer.wait_closed()


async def test_an_editor_starts_its_server_and_reaches_it_every_way(editor: Editor) -> None:
    socks, local = free_port(), editor.client.directory / "l"
    forwards = ["-D", f"{HOST}:{socks}", "-L", f"{local}:{editor.socket}"]
    shared = ["-S", str(editor.client.directory / "m")]
    async with editor.connected(*forwards, "-M", *shared) as process:
        pid = (await talk(local, b"one")).removesuffix(b" one")
        assert int(pid) > 1
        assert await through_socks(socks, "localhost", editor.port, b"two") == pid + b" two"
        assert await through_socks(socks, HOST, editor.port, b"three") == pid + b" three"
        assert await through_socks(socks, HOST, free_port(), b"x") == b""
        # A second window of the same editor, over the same connection.
        done = await editor.client.run("web", *shared, f"cat {editor.place}/port; echo '' two")
        assert done.text == f"{editor.port} two\n"
        at_once = (
            through_socks(socks, HOST, editor.port, b"%d " % n + b"x" * 100_000) for n in range(20)
        )
        for number, answer in enumerate(await asyncio.gather(*at_once)):
            assert answer == pid + b" %d " % number + b"x" * 100_000
        assert process.stdin is not None
        async with asyncio.timeout(60):
            stdout, _ = await process.communicate(b"that is all\n")
        assert stdout == b"told: that is all\n", "all of the script was read"
        assert process.returncode == 0


async def test_an_editor_finds_its_server_again_after_the_link_was_cut(
    editor: Editor, front_door: Entrance
) -> None:
    local = editor.client.directory / "l"
    pids = set()
    for again in (False, True, True):
        forward = ["-L", f"{local}:{HOST}:{editor.port}"] if again else []
        async with editor.connected(*forward, "-o", "StreamLocalBindUnlink=yes") as process:
            if again:
                pids.add((await talk(local, b"still")).removesuffix(b" still"))
            editor.detour.reset()
            async with asyncio.timeout(60):
                assert await process.wait() == 255
    assert len(pids) == 1
    (box,) = await front_door.store.all_boxes()
    await until(lambda: front_door.lifecycle.attachments.count(box.id) == 0)
