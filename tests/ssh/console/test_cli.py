"""The management CLI by the stock OpenSSH client: what it prints is used as it stands."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from boxd.names.variable import MAX_VALUE
from tests.harness.ssh.openssh import HOST, run, running
from tests.harness.wait import DEADLINE

if TYPE_CHECKING:
    from tests.harness.ssh.frontdoor import Entrance
    from tests.harness.ssh.openssh import Client

CANARY = "canary-5ec2e7-value"


def resolved(config: Path, host: str) -> dict[str, str]:
    """What `ssh` makes of a host with this configuration."""
    done = subprocess.run(
        ["ssh", "-G", "-F", str(config), host], check=True, capture_output=True, text=True
    )
    pairs = (line.partition(" ") for line in done.stdout.splitlines())
    return {key: value for key, _, value in pairs}


async def written(client: Client, *words: str) -> Path:
    """The configuration that `ssh-config` prints, in a file, with nothing of this machine."""
    done = await client.run("cli", " ".join(["ssh-config", *words]))
    assert (done.status, done.errors) == (0, "")
    path = client.directory / "config"
    path.write_text(done.text)
    return path


async def test_ssh_understands_the_configuration(front_door: Entrance) -> None:
    client = front_door.client
    await client.run("cli", "up web")
    await client.run("cli", "up api/db")
    config = await written(client, "-i", str(client.key))
    web = resolved(config, "web.box")
    assert (web["hostname"], web["port"], web["user"]) == (HOST, str(client.port), "web")
    assert web["hostkeyalias"] == f"[{HOST}]:{client.port}"
    assert web["identitiesonly"] == "yes"
    assert web["identityfile"] == str(client.key)
    assert (web["controlmaster"], web["controlpersist"]) == ("auto", "600")
    assert (web["serveraliveinterval"], web["serveralivecountmax"]) == ("15", "4")
    assert web["ciphers"].startswith("aes128-gcm@openssh.com,")
    assert "chacha20-poly1305@openssh.com" in web["ciphers"]
    assert resolved(config, "db.api.box")["user"] == "api/db"
    assert resolved(config, "cli.box")["user"] == "cli"
    assert resolved(config, "other.box")["user"] != "web"
    assert resolved(await written(client, "--no-master", "web"), "web.box")["controlmaster"] == (
        "false"
    )


async def test_a_confidential_box_is_reached_through_the_relay(front_door: Entrance) -> None:
    client = front_door.client
    await client.run("cli", "secret set TOKEN", stdin=CANARY.encode())
    made = await run(client.jump("ws1/vault", "true"))
    assert (made.status, made.errors) == (0, "")
    await client.run("cli", "up web")
    config = await written(client, "-i", str(client.key))
    (box,) = [one for one in await front_door.store.all_boxes() if one.confidential]
    vault = resolved(config, "vault.ws1.box")
    assert (vault["hostname"], vault["user"]) == ("ws1/vault", "root")
    assert vault["proxyjump"] == "jump.box"
    assert vault["hostkeyalias"] == f"box-{box.id[:12]}"
    jump = resolved(config, "jump.box")
    assert (jump["hostname"], jump["port"], jump["user"]) == (HOST, str(client.port), "jump")
    assert "proxyjump" not in resolved(config, "web.box")
    done = await run(["ssh", *plain(client, config), "vault.ws1.box", 'echo "[$TOKEN]"'])
    assert (done.status, done.text) == (0, "[]\n")
    known = (client.directory / "known_aliases").read_text()
    assert {line.split()[0] for line in known.splitlines()} == {
        f"[{HOST}]:{client.port}",
        vault["hostkeyalias"],
    }
    assert "Host jump.box" not in (await written(client, "web")).read_text()


def plain(client: Client, config: Path) -> list[str]:
    """Options for a configuration, also of the jump: nothing of this machine's, no master."""
    text = config.read_text().replace("ControlMaster auto", "ControlMaster no")
    more = {
        "UserKnownHostsFile": str(client.directory / "known_aliases"),
        "StrictHostKeyChecking": "accept-new",
        "IdentityAgent": "none",
        "BatchMode": "yes",
        "LogLevel": "ERROR",
    }
    config.write_text("".join(f"{key} {value}\n" for key, value in more.items()) + text)
    return ["-F", str(config)]


async def test_plain_names_connect_share_and_copy_by_it(front_door: Entrance) -> None:
    """As an editor does: many connections to an alias, by one master."""
    client = front_door.client
    await client.run("cli", "up web")
    config = await written(client, "-i", str(client.key))
    socket = client.directory / "%C"
    config.write_text(config.read_text().replace("~/.ssh/box-%C", str(socket)))
    known = await client.run("cli", "ssh-config --known-hosts")
    file = client.directory / "known"
    file.write_bytes(known.stdout)
    options = ["-F", str(config), "-o", f"UserKnownHostsFile={file}", "-o", "BatchMode=yes"]
    options += ["-o", "StrictHostKeyChecking=yes", "-o", "IdentityAgent=none"]
    try:
        for number in range(3):
            done = await run(["ssh", *options, "web.box", f"echo {number}"])
            assert (done.status, done.text, done.errors) == (0, f"{number}\n", "")
        assert (await run(["ssh", *options, "-O", "check", "web.box"])).status == 0
        source = client.directory / "source"
        source.write_bytes(bytes(range(256)) * 1000)
        copy = client.directory / "copy"
        done = await run(["scp", *options, str(source), f"web.box:{copy}"])
        assert (done.status, copy.read_bytes()) == (0, source.read_bytes())
        assert (await run(["ssh", *options, "cli.box", "ls --json"])).status == 0
    finally:
        for host in ("web.box", "cli.box"):
            await run(["ssh", *options, "-O", "exit", host])


async def test_a_secret_reaches_sessions_and_nothing_else(
    front_door: Entrance, caplog: pytest.LogCaptureFixture
) -> None:
    client = front_door.client
    done = await client.run("cli", "secret set TOKEN", stdin=CANARY.encode() + b"\n")
    assert done.status == 0
    shown = done.text + done.errors
    command = 'printf %s "$TOKEN"; tr "\\0" "\\n" < /proc/$$/cmdline >&2'
    ran = await client.run("web", command)
    assert (ran.status, ran.text) == (0, CANARY)
    assert CANARY not in ran.errors
    assert (await client.shell("web", stdin=b'echo "$TOKEN"\n')).text == CANARY + "\n"
    own = await client.run("web", "-o", "SetEnv=TOKEN=own", 'echo "$TOKEN"')
    assert own.text == "own\n"
    stranger = front_door.new_client("stranger")
    assert (await stranger.run("web", 'echo "[$TOKEN]"')).text == "[]\n"
    for line in ("secret ls", "secret ls --json", "secret set TOKEN --json", "whoami", "info web"):
        done = await client.run("cli", line, stdin=CANARY.encode())
        shown += done.text + done.errors
    assert CANARY not in shown
    assert CANARY not in caplog.text
    (row,) = await front_door.store.secrets(client.fingerprint())
    assert CANARY.encode() not in row.sealed
    assert not [path for path in Path("/proc").glob("[0-9]*/cmdline") if CANARY in read(path)]
    await client.run("cli", "secret rm TOKEN")
    assert (await client.run("web", 'echo "[$TOKEN]"')).text == "[]\n"


def read(path: Path) -> str:
    """A file of a process that may have ended."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


async def test_secrets_may_be_long_and_come_as_utf_8(front_door: Entrance) -> None:
    client = front_door.client
    value = b"x" * MAX_VALUE
    assert (await client.run("cli", "secret set BIG", stdin=value)).status == 0
    assert (await client.run("web", 'printf %s "$BIG" | wc -c')).text.strip() == str(MAX_VALUE)
    for stdin, status in ((value + b"xx", 2), (b"", 2), (b"\n", 2), (b"\xff", 2), (b"a\0b", 1)):
        done = await client.run("cli", "secret set OTHER", stdin=stdin)
        assert (done.status, done.text) == (status, ""), stdin[:3]
        assert done.errors
    names = json.loads((await client.run("cli", "secret ls --json")).text)
    assert [one["name"] for one in names] == ["BIG"]


@pytest.mark.parametrize(
    ("typed", "value"),
    [
        (f"{CANARY}\r", CANARY),
        (f"{CANARY}\n", CANARY),
        (f"{CANARY}\x04", CANARY),
        (f"wrong\x15x{CANARY}é\x7f\r", f"x{CANARY}"),
        ("\r", None),
        (f"{CANARY}\x03", None),
    ],
)
async def test_a_secret_typed_at_a_terminal_is_not_shown(
    front_door: Entrance, typed: str, value: str | None
) -> None:
    client = front_door.client
    done = await client.run("cli", "-tt", "secret set TOKEN", stdin=typed.encode())
    assert done.status == (2 if value is None else 0)
    assert done.text.startswith("secret (not shown): \r\n")
    assert CANARY not in done.text + done.errors
    stored = (await client.run("web", 'printf %s "$TOKEN"')).text
    assert stored == (value or "")


@pytest.mark.parametrize(("typed", "removed"), [("y\r", True), ("\r", False)])
async def test_rm_of_a_pinned_box_asks_at_a_terminal(
    front_door: Entrance, typed: str, removed: bool
) -> None:
    client = front_door.client
    await client.run("cli", "up web")
    assert (await client.run("cli", "pin web --why build")).status == 0
    refused = await client.run("cli", "rm web")
    assert (refused.status, "To remove it: rm --force web" in refused.errors) == (1, True)
    done = await client.run("cli", "-tt", "rm web", stdin=typed.encode())
    assert " UTC (build). Remove it? [y/N] " in done.text
    assert done.status == (0 if removed else 1)
    assert (await front_door.store.all_boxes() == []) is removed


async def test_with_a_terminal_there_is_no_colour_and_no_cursor_is_moved(
    front_door: Entrance,
) -> None:
    client = front_door.client
    await client.run("cli", "up web")
    await client.run("cli", "pin web --why 'a\x1b[31mb'")
    for line in ("ls --wide", "info web", "help", "stat", "ws ls", "whoami", "ssh-config"):
        done = await client.run("cli", "-tt", line)
        assert done.status == 0
        assert not re.search(rb"[\x00-\x08\x0b-\x0c\x0e-\x1f\x7f]", done.stdout), line


async def test_a_program_in_a_box_asks_and_goes_on_with_the_answer(front_door: Entrance) -> None:
    client = front_door.client
    up = json.loads((await client.run("cli", "up web --json")).text)
    agent = str(front_door.backend.guest_socket(up["id"]))
    program = [sys.executable, "-m", "box_guest.cli", "--socket", agent, "ask", "Deploy\x1b[2J?"]
    async with running([*program, "--option", "yes", "--option", "not yet"]) as process:
        async with asyncio.timeout(DEADLINE):
            while "Deploy" not in (listed := (await client.run("cli", "asks ls")).text):
                assert process.returncode is None
        header, row = listed.splitlines()
        assert header.split() == ["ID", "BOX", "AGE", "QUESTION", "OPTIONS"]
        assert "web" in row
        assert row.endswith("Deploy\\x1b[2J?  yes | not yet")
        number = row.split()[0]
        refused = await client.run("cli", f"asks answer {number} maybe")
        assert (refused.status, "options: 'yes', 'not yet'" in refused.errors) == (1, True)
        stranger = front_door.new_client("stranger")
        assert (await stranger.run("cli", f"asks answer {number} yes")).status == 1
        done = await client.run("cli", f"asks answer {number} not yet")
        assert (done.status, done.text) == (0, f"answered {number}\n")
        stdout, stderr = await process.communicate()
        assert (process.returncode, stdout, stderr) == (0, b"not yet\n", b"")
    assert len((await client.run("cli", "asks ls")).text.splitlines()) == 1


async def test_mcp_is_for_programs(front_door: Entrance) -> None:
    done = await front_door.client.run("cli", "-tt", "mcp")
    assert (done.status, "use ssh -T" in done.errors) == (2, True)
