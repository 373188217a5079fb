"""The console of administrators, with the stock OpenSSH client."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import asyncssh
import pytest

from tests.harness.ssh.openssh import HOST, end_input, run, running
from tests.harness.wait import until

if TYPE_CHECKING:
    from tests.harness.ssh.frontdoor import Entrance
    from tests.harness.ssh.openssh import Client, Done


@pytest.fixture
def admin(front_door: Entrance) -> Client:
    """An administrator."""
    client = front_door.new_client("admin")
    front_door.administrators.add(client.fingerprint())
    return client


async def as_json(admin: Client, line: str) -> list[dict[str, Any]]:
    """What stdout of a command lists, or the one thing that it tells; it must succeed."""
    done = await admin.run("sudo", f"{line} --json")
    assert done.status == 0, done.errors
    found = json.loads(done.text)
    return found if isinstance(found, list) else [found]


def _was_refused(done: Done, text: str) -> bool:
    return (done.status, done.stdout) == (255, b"") and text in done.errors


async def test_only_administrators_get_in(front_door: Entrance, admin: Client) -> None:
    stranger = front_door.client
    for user in ("sudo", "SUDO"):
        done = await stranger.run(user, "ls")
        assert _was_refused(done, "Permission denied (publickey).")
        assert "admin" not in done.errors.lower()
        assert (await admin.run(user, "ls")).status == 0
    assert await front_door.store.audits(10, stranger.fingerprint()) == []
    assert {one.admin for one in await front_door.store.audits(10)} == {admin.fingerprint()}
    assert (await admin.run("cli", "ls")).status == 0
    assert (await stranger.run("cli", "ls")).status == 0


async def test_it_sees_and_ends_what_others_have(front_door: Entrance, admin: Client) -> None:
    user = front_door.client
    assert (await user.run("web", "true")).status == 0
    (box,) = await front_door.store.all_boxes()
    (shown,) = await as_json(admin, "ls")
    assert (shown["owner"], shown["id"]) == (user.fingerprint(), box.id)
    (owner,) = await as_json(admin, "owners")
    assert (owner["owner"], owner["boxes"], owner["running"]) == (user.fingerprint(), 1, 1)
    assert owner["last_seen"] is not None
    for line, status, text in (
        ("rm 'x", 2, "cannot be read"),
        ("dance", 2, "no command 'dance'"),
        ("kick web", 2, "give its id"),
        (f"kick {user.fingerprint()}:absent", 1, "no box"),
        (f"block {admin.fingerprint()}", 1, "is an administrator"),
        (f"suspend {box.id}", 1, "suspend"),
    ):
        done = await admin.run("sudo", line)
        assert (done.status, done.stdout) == (status, b"")
        assert text in done.errors
    done = await admin.run("sudo", f"rm {user.fingerprint()}:web")
    assert (done.status, done.text) == (0, f"removed web {box.id[:12]}\n")
    assert await front_door.store.all_boxes() == []
    written = [(one["command"], one["status"]) for one in await as_json(admin, "audit")]
    assert written[2:4] == [("rm 'x", 2), ("dance", 2)]
    assert written[-2:] == [(f"rm {user.fingerprint()}:web", 0), ("audit --json", None)]


async def test_it_is_text_and_nothing_else(front_door: Entrance, admin: Client) -> None:
    helped = await admin.shell("sudo")
    assert helped.status == 0
    assert "owners" in helped.text
    on_terminal = await admin.run("sudo", "-tt", "tier ls")
    assert on_terminal.stdout.startswith(b"TIER ")
    assert b"\r\n" in on_terminal.stdout
    assert _was_refused(await admin.run("sudo", "-s", "sftp"), "no files")
    async with admin.second("sudo") as connection:
        with pytest.raises(asyncssh.ChannelOpenError, match="no box to forward to"):
            await connection.open_connection("127.0.0.1", 22)


async def test_who_is_taken_out_of_the_file_types_nothing_more(
    front_door: Entrance, admin: Client
) -> None:
    async with admin.master("sudo") as shared:
        command = ["ssh", *admin.options(), *shared, "-l", "sudo", HOST, "stat"]
        assert (await run(command)).status == 0
        front_door.administrators.clear()
        assert _was_refused(await run(command), "no longer has administrator access")
    assert _was_refused(await admin.run("sudo", "stat"), "Permission denied (publickey).")
    assert len(await front_door.store.audits(10)) == 1


async def test_a_kick_ends_the_sessions_of_a_box_alone(front_door: Entrance, admin: Client) -> None:
    user = front_door.client
    async with running(user.ssh("web", "cat")) as kicked, running(user.ssh("db", "cat")) as other:
        await _echoes(kicked)
        await _echoes(other)
        (kick,) = await as_json(admin, f"kick {user.fingerprint()}:web")
        assert kick["ended"] == 1
        stdout, stderr = await kicked.communicate()
        assert (kicked.returncode, stdout) == (255, b"")
        assert b"an administrator of this service ended the connection" in stderr
        await _echoes(other)
        await end_input(other)
    assert (await user.run("web", "echo on")).text == "on\n"


async def test_who_is_blocked_is_told_so_and_let_in_later(
    front_door: Entrance, admin: Client
) -> None:
    user, text = front_door.client, "this account is blocked"
    async with user.master("web") as shared, running(user.ssh("web", "cat")) as session:
        await _echoes(session)
        (blocked,) = await as_json(admin, f"block {user.fingerprint()}")
        assert blocked["ended"] == 1
        _, stderr = await session.communicate()
        assert session.returncode == 255
        assert text in stderr.decode()
        again = ["ssh", *user.options(), *shared, "-l", "web", HOST, "true"]
        assert _was_refused(await run(again), text)
        async with user.second("web") as connection:
            with pytest.raises(asyncssh.ChannelOpenError, match=text):
                await connection.open_connection("127.0.0.1", 1)
        for name in ("web", "new", "cli", "images", "_", "session-web"):
            assert _was_refused(await user.run(name, "true"), text), name
    boxes = await front_door.store.all_boxes()
    assert [(box.name, box.state) for box in boxes] == [("web", "running")]
    assert (await admin.run("web", "true")).status == 0
    assert (await admin.run("sudo", f"unblock {user.fingerprint()}")).status == 0
    assert (await user.run("web", "echo in")).text == "in\n"


async def test_drained_what_runs_goes_on_and_nothing_begins(
    front_door: Entrance, admin: Client
) -> None:
    user, text = front_door.client, "no new work at the moment"
    async with running(user.ssh("web", "cat")) as session:
        await _echoes(session)
        assert (await admin.run("sudo", "drain")).status == 0
        for name in ("web", "new", "_"):
            assert _was_refused(await user.run(name, "true"), text)
        assert text in (await user.run("cli", "up new")).errors
        assert (await user.run("cli", "ls")).status == 0
        await _echoes(session)
        await end_input(session)
    await until(lambda: not front_door.lifecycle.attachments.held())
    assert (await admin.run("sudo", "drain --cancel")).status == 0
    assert (await user.run("web", "echo in")).text == "in\n"


async def _echoes(process: asyncio.subprocess.Process) -> None:
    """The session is there, and gives back what it gets."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b"here\n")
    async with asyncio.timeout(60):
        assert await process.stdout.readline() == b"here\n"
