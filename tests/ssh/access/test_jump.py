"""`ssh -J jump@HOST root@SPEC` with the stock OpenSSH client: all that a box does, end to end."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import signal
from datetime import timedelta
from typing import TYPE_CHECKING

import asyncssh
import pytest

from boxd.model.box import BoxState
from tests.harness.ssh.files import contents
from tests.harness.ssh.forwards import talk
from tests.harness.ssh.key_agent import ssh_agent
from tests.harness.ssh.openssh import HOST, Done, end_input, kill, listens, run, running
from tests.harness.wait import DEADLINE, until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.harness.ssh.frontdoor import Entrance
    from tests.harness.ssh.openssh import Client

MIB = 1024 * 1024


async def via(client: Client, target: str, *words: str, stdin: bytes = b"") -> Done:
    """`ssh -J jump@... root@target command` to its end."""
    return await run(client.jump(target, *words), stdin)


# --- what a box does --------------------------------------------------------------------


async def test_commands_with_streams_and_status(front_door: Entrance) -> None:
    client = front_door.client
    done = await via(client, "web", "echo out; echo err >&2; exit 3")
    assert (done.status, done.stdout, done.stderr) == (3, b"out\n", b"err\n")
    done = await via(client, "web", "exec >&-; echo late >&2; exit 4")
    assert (done.status, done.stdout, done.stderr) == (4, b"", b"late\n")
    assert (await via(client, "web", "kill -TERM $$")).status == 255
    data = os.urandom(3 * MIB)
    done = await via(client, "web", "cat; echo done", stdin=data)
    assert (done.status, done.stdout) == (0, data + b"done\n")
    latin = "touch /tmp/n\udce4me.$$ && ls /tmp/n?me.$$ && rm /tmp/n?me.$$"
    done = await via(client, "web", f"export LC_ALL=C; {latin}")
    assert done.stdout.startswith(b"/tmp/n\xe4me.")
    (box,) = await front_door.store.all_boxes()
    assert (box.confidential, box.state) == (True, BoxState.RUNNING)
    assert box.relay_key in client.key.with_suffix(".pub").read_text()


async def test_the_environment_is_passed_but_not_the_loaders(front_door: Entrance) -> None:
    settings = ["-o", "SetEnv=LC_TEST=a MINE=x\u00e9 LD_PRELOAD=/evil SSH_CLIENT=evil"]
    show = 'echo "$LC_TEST|$MINE|$LD_PRELOAD|$SSH_CLIENT|$SSH_CONNECTION"'
    done = await via(front_door.client, "web", *settings, show)
    assert done.text == "a|x\u00e9||UNKNOWN 65535 65535|UNKNOWN 65535 UNKNOWN 65535\n"


async def test_a_shell_with_a_terminal(front_door: Entrance) -> None:
    client = front_door.client
    command = ["ssh", *client.hop(), "-tt", "web"]
    done = await run(command, stdin=b"stty -echo; tty; stty size; exit 7\n")
    assert done.status == 7
    assert re.search(rb"/dev/pts/\d+\r\n", done.stdout), done.stdout
    plain = await run(["ssh", *client.hop(), "-T", "web"], stdin=b"echo one\nexit 6\n")
    assert (plain.status, plain.stdout) == (6, b"one\n")


async def test_a_reader_that_goes_away_ends_the_writer(front_door: Entrance) -> None:
    command = shlex.join(front_door.client.jump("web", "yes")) + " | head -n 1000"
    done = await run(["bash", "-c", f"set -o pipefail; {command}; echo ${{PIPESTATUS[1]}}"])
    assert done.stdout == b"y\n" * 1000 + b"0\n"


@pytest.mark.timeout(300)
async def test_fast_commands_over_one_connection_lose_nothing(front_door: Entrance) -> None:
    client = front_door.client
    path = client.directory / "m"
    async with running(["ssh", *client.hop(), "-M", "-S", str(path), "-N", "web"]):
        await until(path.is_socket)
        for number in range(50):
            line = f"echo ok {number}; echo e{number} >&2; exit 5"
            done = await via(client, "web", "-S", str(path), line)
            assert (done.status, done.stdout) == (5, f"ok {number}\n".encode())
            assert done.stderr == f"e{number}\n".encode()


@pytest.mark.parametrize("mode", ["-O", "-s"], ids=["scp", "sftp"])
async def test_scp_both_ways(front_door: Entrance, tmp_path: Path, mode: str) -> None:
    tree, there, back = tmp_path / "tree", tmp_path / "there", tmp_path / "back"
    (tree / "deep").mkdir(parents=True)
    (tree / "deep" / "large").write_bytes(os.urandom(5 * MIB + 1))
    (tree / "with space").write_bytes(b"1")
    (tree / "empty").touch()
    options = [*front_door.client.hop(), mode, "-q", "-r", "-p"]
    up = await run(["scp", *options, str(tree), f"web:{there}"])
    assert (up.status, up.stdout, up.errors) == (0, b"", "")
    down = await run(["scp", *options, f"web:{there}", str(back)])
    assert (down.status, down.errors) == (0, "")
    assert contents(there) == contents(back) == contents(tree)


async def test_sftp_batch(front_door: Entrance, tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_bytes(os.urandom(MIB))
    batch = f"put {one} {two}\nrename {two} {two}.x\nget {two}.x {two}.y\nbye\n"
    command = ["sftp", "-b", "-", *front_door.client.hop(), "web"]
    done = await run(command, stdin=batch.encode())
    assert (done.status, done.errors) == (0, "")
    assert (tmp_path / "two.y").read_bytes() == one.read_bytes()


async def test_ports_and_sockets_are_dialled_from_inside(
    front_door: Entrance, tmp_path: Path
) -> None:
    client = front_door.client
    client.log_level = "INFO"  # the level at which OpenSSH shows a refusal

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write((await reader.read()).upper())
        writer.close()
        await writer.wait_closed()

    port = await asyncio.start_server(echo, HOST, 0)
    path = await asyncio.start_unix_server(echo, str(client.directory / "target"))
    number = port.sockets[0].getsockname()[1]
    forwards = {
        "p": f"{HOST}:{number}",
        "u": str(client.directory / "target"),
        "closed": f"{HOST}:1",
        "self": "box-relay:22",
    }
    options = [f"-L{client.directory / name}:{to}" for name, to in forwards.items()]
    async with port, path, running(client.jump("web", *options, "cat")) as process:
        await until(lambda: listens(client.directory / "self"))
        assert await talk(client.directory / "p", b"x" * 3 * MIB) == b"X" * 3 * MIB
        assert await talk(client.directory / "u", b"hello") == b"HELLO"
        for name in ("closed", "self"):
            assert await talk(client.directory / name, b"") == b""
        await end_input(process)
        assert process.stderr is not None
        said = (await process.stderr.read()).decode()
    assert f"dial {HOST}:1: connection refused" in said
    assert "dial box-relay:22: no such address" in said
    refused = await via(client, "web", "-R", "0:localhost:1", "-o", "ExitOnForwardFailure=yes", "x")
    assert refused.status == 255
    assert "remote port forwarding failed" in refused.errors


async def test_the_clients_agent_is_reached_if_it_is_asked_for(front_door: Entrance) -> None:
    client = front_door.client
    agent = client.directory / "agent"
    extra = client.make_key("extra", "-t", "ed25519")
    async with ssh_agent(agent, extra):
        command = client.jump("web", "-A", "ssh-add -l; stat -c %a ${SSH_AUTH_SOCK%/*}")
        use = f"IdentityAgent={agent}"
        listed = await run([use if word == "IdentityAgent=none" else word for word in command])
        without = await via(client, "web", 'echo "[$SSH_AUTH_SOCK]"')
    fingerprint = (await run(["ssh-keygen", "-l", "-f", str(extra)])).text.split()[1]
    assert fingerprint in listed.text
    assert listed.text.endswith("\n700\n")
    assert without.text == "[]\n"


# --- which box --------------------------------------------------------------------------


@pytest.mark.timeout(300)
async def test_targets_are_box_specs(front_door: Entrance) -> None:
    client = front_door.client
    for target in ("a", "B", "c:debian:large^1h+5m", "ws1/d:debian", "e+", "f+^1h", "a:debian+9m"):
        done = await via(client, target, "-p", "2222", "echo ok")
        assert (done.status, done.text) == (0, "ok\n"), target
    boxes = {box.ref: box for box in await front_door.store.all_boxes()}
    assert set(boxes) == {"a", "b", "c", "ws1/d", "e", "f"}
    assert all(box.confidential for box in boxes.values())
    assert boxes["c"].flavor == "large"
    assert boxes["c"].deadline is not None
    assert [boxes[name].grace for name in "ac"] == [timedelta(minutes=9), timedelta(minutes=5)]


async def test_a_throwaway_box_goes_with_its_connection(front_door: Entrance) -> None:
    path = front_door.client.directory / "m"
    command = ["ssh", *front_door.client.hop(), "-M", "-S", str(path), "_", "cat"]
    async with running(command) as process:
        await until(path.is_socket)
        (box,) = await front_door.store.all_boxes()
        assert box.confidential
        assert box.ephemeral
        again = await via(front_door.client, "_", "-S", str(path), "echo same")
        assert again.text == "same\n"
        assert len(await front_door.store.all_boxes()) == 1
        assert front_door.lifecycle.attachments.why(box.id) == {"relay": 1}
        await end_input(process)
    async with asyncio.timeout(DEADLINE):
        while True:
            if not await front_door.store.all_boxes():
                return
            await asyncio.sleep(0.02)


async def test_a_fresh_box_is_new_once_in_a_connection_to_the_door(front_door: Entrance) -> None:
    client = front_door.client
    await via(client, "web", "true")
    (old,) = await front_door.store.all_boxes()
    async with client.second("jump") as door:
        for _ in range(2):
            own = {"client_keys": [str(client.key)], "known_hosts": None, "config": None}
            async with door.connect_ssh("web+", username="root", **own) as box:
                assert (await box.run("echo ok")).stdout == "ok\n"
    (new,) = await front_door.store.all_boxes()
    assert new.id != old.id
    # Its host key is its own: who knew the old one is warned.
    changed = await via(client, "web", "true")
    assert changed.status == 255
    assert "Host key verification failed" in changed.errors


async def test_the_host_key_outlives_a_stop_of_the_box(front_door: Entrance) -> None:
    client = front_door.client
    assert (await via(client, "web", "true")).status == 0
    known = client.relays.read_text()
    (box,) = await front_door.store.all_boxes()
    front_door.backend.kill(box.id)
    done = await via(client, "web", "echo again")
    assert (done.status, done.text, done.errors) == (0, "again\n", "")
    assert client.relays.read_text() == known
    (again,) = await front_door.store.all_boxes()
    assert (again.id, again.confidential) == (box.id, True)


# --- who, and what is refused -----------------------------------------------------------


async def test_the_box_itself_refuses_another_key(front_door: Entrance) -> None:
    client = front_door.client
    assert (await via(client, "web", "true")).status == 0
    wrong = client.make_key("wrong", "-t", "ed25519")
    done = await run(client.jump("web", "true", key=wrong))
    assert done.status == 255
    assert "Permission denied (publickey)" in done.errors


async def test_an_rsa_key_opens_its_box(front_door: Entrance) -> None:
    client = front_door.client
    client.key = client.make_key("other", "-t", "rsa", "-b", "2048")
    assert (await via(client, "web", "echo ok")).text == "ok\n"


async def test_a_box_of_somebody_else_is_another_box(front_door: Entrance) -> None:
    bob = front_door.new_client("bob")
    await via(front_door.client, "web", "true")
    done = await via(bob, "web", "echo mine")
    assert done.text == "mine\n"
    one, two = await front_door.store.all_boxes()
    assert one.owner != two.owner
    assert one.relay_key != two.relay_key
    shown = bob.relays.read_text() + front_door.client.relays.read_text()
    hosts = [line.split()[2] for line in shown.splitlines()]
    assert len(set(hosts)) == 2


async def test_what_jump_does_not_do_is_said(front_door: Entrance) -> None:
    client = front_door.client
    pointer = f"jump only relays: ssh -J jump@{HOST}:{client.port} root@NAME"
    for done in (
        await client.run("jump", "true"),
        await client.shell("jump"),
        await client.run("jump", "-s", "sftp"),
    ):
        assert (done.status, done.stdout) == (255, b"")
        assert pointer in done.errors
    client.log_level = "INFO"
    to_socket = ["-L", f"{client.directory / 'l'}:/run/x", "-N"]
    async with running(["ssh", *client.options(), "-l", "jump", *to_socket, HOST]) as process:
        await until(lambda: listens(client.directory / "l"))
        assert await talk(client.directory / "l", b"") == b""
        kill(process, signal.SIGTERM)
        assert process.stderr is not None
        assert pointer.encode() in await process.stderr.read()
    assert await front_door.store.all_boxes() == []


async def test_a_target_that_is_none_is_refused_in_words(front_door: Entrance) -> None:
    refusals = {
        "we_b": "'we_b' is not valid",
        "cli": "'cli' is reserved",
        "session-web": "session-web",
        "example.com": "'example.com' is not valid",
        "web:nosuch": "nosuch",
        "web^5": "deadline '^ttl' '5' is not valid",
        "x" * 600: "600 characters",
        "we\u202eb": "is not valid",
        "": "empty",
        "[]": "empty",
    }
    # asyncssh, because OpenSSH refuses some of these itself.
    async with front_door.client.second("jump") as door:
        for target, says in refusals.items():
            with pytest.raises(asyncssh.ChannelOpenError) as refused:
                await door.open_connection(target, 22)
            assert says in refused.value.reason
            assert refused.value.reason.isprintable()
    assert await front_door.store.all_boxes() == []


async def test_a_box_that_is_not_confidential_cannot_become_it(front_door: Entrance) -> None:
    client = front_door.client
    client.log_level = "INFO"
    assert (await client.run("web", "echo kept > /tmp/kept.$$")).status == 0
    done = await via(client, "web", "true")
    assert done.status == 255
    assert "box web is not confidential; use a new name" in done.errors
    (box,) = await front_door.store.all_boxes()
    assert not box.confidential


async def test_every_other_door_is_closed_and_shows_this_one(front_door: Entrance) -> None:
    client = front_door.client
    client.log_level = "INFO"
    await via(client, "ws1/web", "true")
    (box,) = await front_door.store.all_boxes()
    pointer = f"connect with ssh -J jump@{HOST}:{client.port} root@ws1/web"
    for user in ("ws1/web", f"session-{box.id[:12]}", "ws1/web:debian+5m"):
        for done in (await client.run(user, "id"), await client.run(user, "-s", "sftp")):
            assert (done.status, done.stdout) == (255, b"")
            assert "box ws1/web is confidential" in done.errors
            assert pointer in done.errors
    through = await client.shell("ws1/web", "-W", f"{HOST}:1")
    assert pointer in through.errors
    assert front_door.lifecycle.attachments.count(box.id) == 0
    # What does not look into it works.
    shown = await client.run("cli", "info ws1/web")
    assert ["confidential:", "yes"] in [line.split() for line in shown.text.splitlines()]
    assert f"ssh -J jump@{HOST}:{client.port} root@ws1/web" in shown.text
    assert (await client.run("cli", "up ws1/web")).status == 0
    assert (await client.run("cli", "pin ws1/web")).status == 0
    assert (await client.run("cli", "rm --force ws1/web")).status == 0
    assert (await client.run("ws1/web", "echo normal")).text == "normal\n"


async def test_dropbear_hops_there_too(front_door: Entrance) -> None:
    client = front_door.client
    key = str(client.directory / "dropbear")
    converted = await run(["dropbearconvert", "openssh", "dropbear", str(client.key), key])
    assert converted.status == 0
    # It starts itself for the hop, by the path that it was started with.
    program = ["env", f"HOME={client.directory}", "/usr/bin/dbclient", "-y", "-y", "-i", key]
    hops = f"jump@{HOST}^{client.port},root@web"
    done = await run([*program, hops, "echo out; exit 5"])
    assert (done.status, done.stdout) == (5, b"out\n")


async def test_a_removed_box_ends_its_connections(front_door: Entrance) -> None:
    client = front_door.client
    async with running(client.jump("web", "echo up; exec cat")) as process:
        assert process.stdout is not None
        assert await process.stdout.readline() == b"up\n"
        assert (await client.run("cli", "rm web")).status == 0
        async with asyncio.timeout(30):
            assert await process.wait() == 255
