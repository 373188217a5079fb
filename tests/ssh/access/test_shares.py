"""Shares through the front door: what a link opens, for how long, and what it does not open."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import os
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from boxd.boxes.presence import expiry
from boxd.clock import SystemClock
from boxd.log import LineFormatter
from boxd.principal import Principal
from boxd.secret import Secret
from boxd.ssh.connection import limits
from tests.harness.ssh.forwards import check_intact, shout, talk
from tests.harness.ssh.key_agent import ssh_agent
from tests.harness.ssh.openssh import HOST, Client, Done, end_input, run, running
from tests.harness.wait import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import pytest

    from tests.harness.ssh.frontdoor import Entrance

OVER = "this share link is not valid or has expired; ask its owner for a new one\n"
HEAD = ["ID", "BOX", "CREATED", "EXPIRES", "LAST", "USED"]


async def mint(front_door: Entrance, *words: str) -> dict[str, Any]:
    """A new share of box web, or as words say, with its token."""
    await front_door.client.run("cli", "up web")
    line = " ".join(["share", *(words or ["web"]), "--json"])
    done = await front_door.client.run("cli", line)
    assert done.status == 0, done.errors
    share: dict[str, Any] = json.loads(done.text)
    return share


def holder_of(front_door: Entrance, name: str = "holder") -> Client:
    """Somebody else, with a key that the service has never seen."""
    client = front_door.new_client(name)
    client.log_level = "INFO"
    return client


@asynccontextmanager
async def inside(client: Client, user: str, *options: str) -> AsyncIterator[Any]:
    """A session of a holder that answers."""
    async with running(client.ssh(user, *options, "cat")) as process:
        await check_intact(process)
        yield process


async def ended(process: asyncio.subprocess.Process) -> tuple[int | None, str]:
    """Status and last words of a session that ends by itself."""
    async with asyncio.timeout(30):
        _, stderr = await process.communicate()
    return process.returncode, stderr.decode()


async def test_a_link_is_shown_once_listed_and_revoked(front_door: Entrance) -> None:
    client = front_door.client
    await client.run("cli", "up ws1/web")
    made = await client.run("cli", "share -w ws1 web --ttl 1d")
    assert made.status == 0
    ssh, user = made.text.rstrip("\n").rsplit(" ", 1)
    assert ssh == f"ssh -p {client.port}"
    assert user.startswith("svcs_")
    assert user.endswith(f"@{HOST}")
    token = user.partition("@")[0]
    assert len(token) == 37
    assert "opens box ws1/web, including /wrk, to everyone" in made.errors
    assert "shown only once" in made.errors
    assert token not in made.errors
    second = await client.run("cli", "share create ws1/web")
    assert second.status == 0
    assert "until it is revoked" in second.errors
    listed = await client.run("cli", "share ls")
    head, *rows = (line.split() for line in listed.text.splitlines())
    assert head == HEAD
    assert [row[1] for row in rows] == ["ws1/web", "ws1/web"]
    assert [row[3] == "-" for row in rows] == [False, True]
    assert token not in listed.text
    assert (await holder_of(front_door).run(token, "echo in")).text == "in\n"
    one, _ = json.loads((await client.run("cli", "share ls ws1/web --json")).text)
    assert one["last_used"] is not None
    assert "token" not in one
    gone = await client.run("cli", f"share rm {rows[0][0]}")
    assert gone.text == f"removed share {rows[0][0]} of ws1/web\n"
    left = json.loads((await client.run("cli", "share ls --json")).text)
    assert [share["id"][:12] for share in left] == [rows[1][0]]


async def test_command_lines_that_fail(front_door: Entrance) -> None:
    await front_door.client.run("cli", "up web")
    for line, status, says in (
        ("share", 2, "usage: share [-w WS]"),
        ("share nothing", 1, "no box 'nothing'"),
        ("share web --ttl 0s", 2, "must be positive"),
        ("share web --ttl soon", 2, "not valid"),
        ("share rm", 2, "usage: share rm"),
        ("share rm zz", 1, "no share 'zz'; see: share ls"),
        ("share ls nothing", 1, "no box 'nothing'"),
    ):
        done = await front_door.client.run("cli", line)
        assert (done.status, done.stdout) == (status, b""), line
        assert says in done.errors


async def test_a_holder_with_any_key_has_sessions_and_files(
    front_door: Entrance, tmp_path: Path
) -> None:
    token = (await mint(front_door))["token"]
    holder = holder_of(front_door)
    done = await holder.run(token, "cat; echo err >&2; exit 3", stdin=b"input")
    assert (done.status, done.stdout, done.stderr) == (3, b"input", b"err\n")
    shell = await holder.shell(token.upper(), "-T", stdin=b"echo shell; exit 4\n")
    assert (shell.status, shell.text) == (4, "shell\n")
    (tmp_path / "here").write_bytes(b"file")
    (tmp_path / "rsa").mkdir()
    rsa = holder.make_key("rsa", "-t", "rsa", "-b", "2048")
    copy = ["scp", "-q", *holder.options(rsa), "-o", f"User={token}"]
    done = await run([*copy, str(tmp_path / "here"), f"{HOST}:{tmp_path}/there"])
    assert (done.status, done.stderr) == (0, b"")
    assert (tmp_path / "there").read_bytes() == b"file"
    # What the owner may, a holder may not.
    assert (await holder.run("cli", "ls")).text.count("\n") == 1
    assert (await holder.run("cli", "share ls")).text.split() == HEAD
    assert (await holder.run("session-web", "true")).status == 255
    [box] = await front_door.store.all_boxes()
    assert box.owner == front_door.client.fingerprint()


async def test_a_holder_forwards_ports_and_has_neither_agent_nor_secrets(
    front_door: Entrance, tmp_path: Path
) -> None:
    token = (await mint(front_door))["token"]
    holder, local = holder_of(front_door), tmp_path / "l"
    server = await asyncio.start_server(shout, HOST, 0)
    target = f"{HOST}:{server.sockets[0].getsockname()[1]}"
    async with server, inside(holder, token, "-L", f"{local}:{target}") as process:
        assert await talk(local, b"hello") == b"HELLO!"
        box_id = (await front_door.store.all_boxes())[0].id
        why = front_door.lifecycle.attachments.why
        await until(lambda: why(box_id) == {"shared command": 1})
        await end_input(process)
    me = Principal(front_door.client.fingerprint(), None, "ssh_key")
    await front_door.operations.secrets.set_secret(me, "MINE", Secret("value"), tier="account")
    assert (await front_door.client.run("web", "echo [$MINE]")).text == "[value]\n"
    agent = holder.directory / "agent"
    async with ssh_agent(agent, holder.key):
        command = holder.ssh(token, "-A", 'echo "[$SSH_AUTH_SOCK$MINE]"')
        use = f"IdentityAgent={agent}"
        done = await run([use if word == "IdentityAgent=none" else word for word in command])
    assert (done.status, done.text) == (0, "[]\n")


async def test_links_that_are_good_for_nothing_are_told_one_text(
    front_door: Entrance, monkeypatch: pytest.MonkeyPatch
) -> None:
    await front_door.client.run("cli", "up other")
    good, revoked = await mint(front_door), await mint(front_door)
    removed, expired = await mint(front_door, "other"), await mint(front_door, "web", "--ttl 1h")
    await front_door.client.run("cli", f"share rm {revoked['id']}")
    await front_door.client.run("cli", "rm other")
    later = datetime.now(UTC) + timedelta(hours=1)
    monkeypatch.setattr(SystemClock, "now", lambda _: later)
    text, holder = good["token"], holder_of(front_door)
    dead = [*(share["token"] for share in (revoked, removed, expired))]
    bad = ["svcs_", text[:-1], text + "0", "svcs_" + "0" * 32, text + ":debian", text + "+"]
    for user in (*dead, *bad):
        assert await holder.run(user, "true") == Done(255, b"", OVER.encode()), user
    for user in (dead[0], bad[3]):
        assert await holder.shell(user, "-T") == Done(255, b"", OVER.encode())
        assert await holder.run(user, "-s", "sftp") == Done(255, b"", OVER.encode())
        refused = await run(["ssh", *holder.options(), "-l", user, "-W", f"{HOST}:1", HOST])
        assert refused.status == 255
        assert OVER.strip() in refused.errors
    assert [box.name for box in await front_door.store.all_boxes()] == ["web"]
    assert (await holder.run(text, "echo in")).text == "in\n"


async def test_revoking_ends_what_is_open_and_opens_nothing_more(
    front_door: Entrance, tmp_path: Path
) -> None:
    share, other = await mint(front_door), await mint(front_door)
    holder, local = holder_of(front_door), tmp_path / "l"
    server = await asyncio.start_server(shout, HOST, 0)
    target = f"{HOST}:{server.sockets[0].getsockname()[1]}"
    async with (
        server,
        inside(front_door.client, "web") as own,
        inside(holder_of(front_door, "second"), other["token"]) as another,
        holder.master(share["token"], "-L", f"{local}:{target}") as shared,
        inside(holder, share["token"], *shared) as process,
    ):
        reader, writer = await asyncio.open_unix_connection(str(local))
        (box,) = await front_door.store.all_boxes()
        attachments = front_door.lifecycle.attachments
        await until(lambda: attachments.why(box.id).get("shared forward") == 1)
        await front_door.client.run("cli", f"share rm {share['id']}")
        assert await ended(process) == (255, "this share link was revoked\n")
        async with asyncio.timeout(30):
            assert await reader.read() == b""
        writer.close()
        await writer.wait_closed()
        again = await run(["ssh", *holder.options(), "-l", "x", *shared, HOST, "true"])
        assert (again.status, again.errors) == (255, OVER)
        assert attachments.why(box.id) == {"command": 1, "shared command": 1}
        for left in (own, another):
            await check_intact(left)
            await end_input(left)


async def test_what_is_open_ends_when_the_link_expires(
    front_door: Entrance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expiry, "LOOK_EVERY_S", 0.05)
    share, endless = await mint(front_door, "web", "--ttl 1h"), await mint(front_door)
    async with (
        inside(holder_of(front_door), share["token"]) as process,
        inside(holder_of(front_door, "second"), endless["token"]) as other,
    ):
        later = datetime.now(UTC) + timedelta(hours=1)
        monkeypatch.setattr(SystemClock, "now", lambda _: later)
        assert await ended(process) == (255, "this share link has expired\n")
        await check_intact(other)


async def test_a_link_wakes_its_box_and_dies_with_it(front_door: Entrance) -> None:
    token = (await mint(front_door))["token"]
    holder = holder_of(front_door)
    (box,) = await front_door.store.all_boxes()
    async with inside(holder, token) as process:
        front_door.backend.kill(box.id)
        assert (await ended(process))[0] == 255
    async with inside(holder, token) as process:
        await front_door.client.run("cli", "rm web")
        assert await ended(process) == (255, "box web was removed\n")
    # A box of the same name is another box.
    await front_door.client.run("cli", "up web")
    assert await holder.run(token, "true") == Done(255, b"", OVER.encode())


async def test_holders_cannot_keep_the_owner_out(
    front_door: Entrance, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = await mint(front_door), await mint(front_door)
    monkeypatch.setattr(limits, "CHANNELS_PER_OWNER", 1)
    async with inside(holder_of(front_door), first["token"]) as process:
        refused = await holder_of(front_door, "second").run(second["token"], "true")
        assert (refused.status, refused.stdout) == (255, b"")
        assert "channels of the shares of one owner" in refused.errors
        assert (await front_door.client.run("web", "echo mine")).text == "mine\n"
        await end_input(process)
    assert (await holder_of(front_door, "third").run(second["token"], "echo in")).text == "in\n"


async def test_a_token_stands_in_no_log_row_or_process(front_door: Entrance) -> None:
    said = io.StringIO()
    handler = logging.StreamHandler(said)
    handler.setFormatter(LineFormatter())
    loggers = {name: logging.getLogger(name) for name in ("", "boxd", "asyncssh")}
    before = {name: logger.level for name, logger in loggers.items()}
    loggers[""].addHandler(handler)
    try:
        for logger in loggers.values():
            logger.setLevel(logging.DEBUG)
        share = await mint(front_door)
        secret = share["token"].removeprefix("svcs_")
        async with inside(holder_of(front_door), share["token"]) as process:
            found = list(_texts_of_processes(besides="ssh"))
            await end_input(process)
        await front_door.client.run("cli", f"share rm {share['id']}")
        await holder_of(front_door, "late").run(share["token"], "true")
        await front_door.operations.close()
    finally:
        loggers[""].removeHandler(handler)
        for name, level in before.items():
            loggers[name].setLevel(level)
    assert "svcs_***" in said.getvalue(), "nothing was logged where the token could have stood"
    assert secret not in said.getvalue()
    assert any(b"box_guest" in text for text in found), "the agent was not looked at"
    assert not any(secret.encode() in text for text in found)
    assert secret not in repr(vars(front_door.store))


def _texts_of_processes(besides: str) -> list[bytes]:
    """Command lines and environments of this process and all below it, but for one program."""
    texts, ours = list[bytes](), {os.getpid()}
    for place in sorted(Path("/proc").glob("[0-9]*"), key=lambda place: int(place.name)):
        try:
            parent = int((place / "stat").read_text().rpartition(")")[2].split()[1])
            if int(place.name) not in ours and parent not in ours:
                continue
            ours.add(int(place.name))
            if (place / "comm").read_text().strip() != besides:
                texts += [(place / name).read_bytes() for name in ("cmdline", "environ")]
        except (FileNotFoundError, ProcessLookupError):
            continue
    return texts
