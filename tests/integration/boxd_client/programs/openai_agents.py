"""Checks of the integration with the OpenAI Agents SDK. The first argument names one of them.

Run by an interpreter that has the published package, before a service that the environment names.
"""

from __future__ import annotations

import asyncio
import io
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from agents import Runner
from agents.run import RunConfig
from agents.sandbox import (
    ExecTimeoutError,
    ExposedPortUnavailableError,
    LocalSnapshotSpec,
    Manifest,
    SandboxAgent,
    SandboxRunConfig,
    WorkspaceReadNotFoundError,
)
from agents.sandbox.entries import File
from agents.sandbox.errors import (
    InvalidManifestPathError,
    WorkspaceArchiveWriteError,
)
from agents.sandbox.manifest import Environment
from agents.sandbox.types import User
from agents.testing import ScriptedModel, assistant_message, function_call

from boxd_client import AsyncClient
from boxd_client.integrations.openai_agents import (
    BoxdSandboxClient,
    BoxdSandboxClientOptions,
    BoxdSandboxSessionState,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from agents.sandbox.session import SandboxSession


def raises(kind: type[BaseException], error: BaseException | None) -> str:
    """Return the text of an error of this kind."""
    assert isinstance(error, kind), repr(error)
    return str(error)


async def caught(call: Awaitable[object]) -> BaseException | None:
    """Return what an awaited call raises."""
    try:
        await call
    except Exception as error:  # the caller compares its type
        return error
    return None


def state_of(session: SandboxSession) -> BoxdSandboxSessionState:
    """Return the state of a session of a box."""
    state = session.state
    assert isinstance(state, BoxdSandboxSessionState)
    return state


async def exists(name: str) -> bool:
    """Return whether the account has a box of this name."""
    async with AsyncClient() as client:
        return await client.box(name).exists()


async def boxes() -> list[str]:
    """Return the names of all boxes of the account."""
    async with AsyncClient() as client:
        return sorted(box.ref for box in await client.boxes.list())


async def check_commands() -> None:
    """Commands have exact output, codes, variables, a directory, a user and a time limit."""
    client = BoxdSandboxClient()
    manifest = Manifest(environment=Environment(value={"COLOUR": "blue sky"}))
    options = BoxdSandboxClientOptions(env={"COLOUR": "red", "SIZE": "9"})
    session = await client.create(manifest=manifest, options=options)
    async with session:
        assert await session.running()
        result = await session.exec("pwd; echo $COLOUR $SIZE; echo oops >&2; exit 3")
        assert (result.stdout, result.stderr) == (b"/workspace\nblue sky 9\n", b"oops\n")
        assert result.exit_code == 3
        result = await session.exec("printf", "%s|", "a b", "$HOME", "'", shell=False)
        assert result.stdout == b"a b|$HOME|'|"
        result = await session.exec("head -c 1000000 /dev/zero; printf '\\377'")
        assert result.stdout == bytes(1000000) + b"\xff"
        assert (await session.exec("id -un", user="nobody")).stdout == b"nobody\n"
        error = await caught(session.exec("touch begun; sleep 1000", timeout=1.0))
        raises(ExecTimeoutError, error)
        assert (await session.exec("cat begun; echo $?")).stdout == b"0\n"
        name = state_of(session).box
    assert not await exists(name)
    await client.delete(session)


async def check_files() -> None:
    """Files are written, read, listed, patched and removed, and stay in the workspace."""
    client = BoxdSandboxClient()
    manifest = Manifest(entries={"notes/first.txt": File(content=b"from the manifest\n")})
    async with await client.create(manifest=manifest) as session:
        assert (await session.read(Path("notes/first.txt"))).read() == b"from the manifest\n"
        data = bytes(range(256)) * 4096
        await session.write(Path("deep/er/data"), io.BytesIO(data))
        assert (await session.read(Path("/workspace/deep/er/data"))).read() == data
        assert await session.read_bounded(Path("deep/er/data"), max_bytes=300) == data[:300]
        await session.write(Path("mine"), io.BytesIO(b"x"), user=User(name="root"))
        names = {Path(entry.path).name for entry in await session.ls("deep")}
        assert "er" in names
        await session.mkdir("made/here", parents=True)
        await session.mv("mine", "made/here/mine")
        patch: dict[str, object] = {
            "type": "create_file",
            "path": "new.txt",
            "diff": "+one\n+two\n",
        }
        await session.apply_patch(patch)
        assert (await session.read(Path("new.txt"))).read().splitlines() == [b"one", b"two"]
        await session.rm("made", recursive=True)
        raises(WorkspaceReadNotFoundError, await caught(session.read(Path("made/here/mine"))))
        raises(WorkspaceReadNotFoundError, await caught(session.read(Path("deep"))))
        raises(InvalidManifestPathError, await caught(session.read(Path("/etc/passwd"))))
        await session.exec("ln -s /etc out")
        raises(InvalidManifestPathError, await caught(session.read(Path("out/passwd"))))
        escape = session.write(Path("out/new"), io.BytesIO(b"x"))
        raises(InvalidManifestPathError, await caught(escape))
    await client.delete(session)


async def check_attachment() -> None:
    """A box that exists before the session is used and stays."""
    async with AsyncClient() as account:
        await account.box("mine").exec("mkdir -p /workspace; echo kept > /workspace/file")
        client = BoxdSandboxClient(client=account)
        options = BoxdSandboxClientOptions(box="mine")
        async with await client.create(options=options) as session:
            assert (await session.read(Path("file"))).read() == b"kept\n"
        await client.delete(session)
        assert await account.box("mine").exists()
        await account.box("mine").remove()


async def check_resumption() -> None:
    """A suspended box wakes with its processes; its state passes through JSON."""
    client = BoxdSandboxClient()
    options = BoxdSandboxClientOptions(pause_on_exit=True, deadline="1h")
    session = await client.create(options=options)
    async with session:
        await session.exec("echo 1 > file; setsid sleep 1000 >/dev/null 2>&1 & echo $! > pid")
    await client.delete(session)
    name = state_of(session).box
    async with AsyncClient() as account:
        assert (await account.box(name).info()).state == "suspended"
    payload = client.serialize_session_state(session.state)
    assert "svc_" not in repr(payload)
    again = await client.resume(client.deserialize_session_state(payload))
    async with again:
        assert (
            await again.exec("cat file; kill -0 $(cat pid) && echo alive")
        ).stdout == b"1\nalive\n"
        async with AsyncClient() as account:
            await account.box(name).remove()
            await account.box(name).exec("true")  # the name of another box now
    assert await exists(name)
    async with AsyncClient() as account:
        await account.box(name).remove()


async def check_workspaces() -> None:
    """A new box replaces a removed one, with its files, but without ephemeral ones."""
    client = BoxdSandboxClient()
    with tempfile.TemporaryDirectory() as folder:
        manifest = Manifest(entries={"skipped": File(content=b"again", ephemeral=True)})
        spec = LocalSnapshotSpec(base_path=Path(folder))
        session = await client.create(manifest=manifest, snapshot=spec)
        async with session:
            await session.exec(
                "echo text > 'a file'; ln -s 'a file' link; echo x > '-dash'; chmod 711 link"
            )
            await session.exec("echo changed > skipped")
        assert not await exists(state_of(session).box)
        payload = client.serialize_session_state(session.state)
        again = await client.resume(client.deserialize_session_state(payload))
        async with again:
            result = await again.exec("cat link ./-dash skipped; stat -c %a 'a file'")
            assert result.stdout == b"text\nx\nagain711\n", result.stdout
            assert state_of(again).box == state_of(session).box
    await client.delete(again)
    assert not await exists(state_of(session).box)


async def check_snapshots() -> None:
    """With `snapshot`, a session restores the whole box, in place and as another box."""
    client = BoxdSandboxClient()
    options = BoxdSandboxClientOptions(workspace_persistence="snapshot")
    first = await client.create(options=options)
    async with first:
        await first.exec("echo old > file; echo system > /etc/mark")
        reference = (await first.persist_workspace()).read()
        assert len(reference) < 400
        await first.exec("echo new > file; rm /etc/mark")
        await first.hydrate_workspace(io.BytesIO(reference))
        assert (await first.exec("cat file /etc/mark")).stdout == b"old\nsystem\n"
        second = await client.create(options=options)
        async with second:
            await second.hydrate_workspace(io.BytesIO(reference))
            assert (await second.exec("cat file /etc/mark")).stdout == b"old\nsystem\n"
            assert state_of(second).box != state_of(first).box
        assert not await exists(state_of(second).box)
    with tempfile.TemporaryDirectory() as folder:
        spec = LocalSnapshotSpec(base_path=Path(folder))
        third = await client.create(options=options, snapshot=spec)
        async with third:
            await third.exec("echo third > file; echo system > /etc/mark")
        assert not await exists(state_of(third).box)
        again = await client.resume(third.state)
        async with again:
            assert (await again.exec("cat file /etc/mark")).stdout == b"third\nsystem\n"
    async with AsyncClient() as account:
        for one in await account.boxes.snapshots():
            await account.box(one.box).remove_snapshot(one.name)


async def check_bad_archives() -> None:
    """Archives and references that are not valid are refused, and the box stays as it is."""
    outside, link = tarfile.TarInfo("../outside"), tarfile.TarInfo("link")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc"
    magic = b"BOXD_SNAPSHOT_V1\n"
    bad = [b"no tar", magic, magic + b"[]", magic + b'{"box": "a!", "snapshot": "s"}', magic * 9]
    for member in (outside, link):
        archive = io.BytesIO()
        with tarfile.open(fileobj=archive, mode="w") as tar:
            tar.addfile(member)
        bad.append(archive.getvalue())
    client = BoxdSandboxClient()
    async with await client.create() as session:
        await session.exec("echo kept > file")
        for data in bad:
            error = await caught(session.hydrate_workspace(io.BytesIO(data)))
            raises(WorkspaceArchiveWriteError, error)
        result = await session.exec("cat file; ls /outside link")
        assert (result.stdout, result.exit_code) == (b"kept\n", 2)


async def check_ports() -> None:
    """A port has the host of its preview; a closed or undeclared port has none."""
    client = BoxdSandboxClient()
    options = BoxdSandboxClientOptions(exposed_ports=(8000, 8001))
    async with await client.create(options=options) as session:
        await session.exec(
            "setsid python3 -m http.server -b 127.0.0.1 8000 >/dev/null 2>&1 & "
            "until python3 -c 'import socket; socket.create_connection((\"127.0.0.1\", 8000))' "
            "2>/dev/null; do sleep 0.05; done"
        )
        endpoint = await session.resolve_exposed_port(8000)
        assert endpoint.host.endswith("-8000.preview.internal"), endpoint
        for port, text in ((8001, "listens"), (9, "not_configured")):
            error = await caught(session.resolve_exposed_port(port))
            raises(ExposedPortUnavailableError, error)
            assert isinstance(error, ExposedPortUnavailableError)
            assert text in repr(error.context), error.context


async def check_no_previews() -> None:
    """A service without previews has no endpoint, and the error names the flag."""
    client = BoxdSandboxClient()
    options = BoxdSandboxClientOptions(exposed_ports=(8000,))
    async with await client.create(options=options) as session:
        error = await caught(session.resolve_exposed_port(8000))
        assert isinstance(error, ExposedPortUnavailableError)


async def check_agent() -> None:
    """An agent with a scripted model runs a command and gets its output."""
    model = ScriptedModel(
        [
            [function_call("exec_command", {"cmd": "echo $((6 * 7)) > n; cat n"}, call_id="one")],
            [assistant_message("42")],
        ]
    )
    agent = SandboxAgent(name="coder", instructions="Work in the sandbox.", model=model)
    config = RunConfig(sandbox=SandboxRunConfig(client=BoxdSandboxClient()), tracing_disabled=True)
    before = await boxes()
    result = await Runner.run(agent, "What is 6 times 7?", run_config=config)
    assert result.final_output == "42"
    model.assert_complete()
    call = model.last_call
    assert call is not None
    outputs = [item for item in call.input if isinstance(item, dict) and "output" in item]
    assert "42" in repr(outputs), outputs
    assert await boxes() == before


if __name__ == "__main__":
    asyncio.run(globals()[f"check_{sys.argv[1]}"]())
