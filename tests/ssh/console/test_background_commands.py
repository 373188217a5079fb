"""`commands` of the management CLI, by the stock OpenSSH client and the real agent."""

from __future__ import annotations

import base64
import json
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from box_guest.shared import command_messages

if TYPE_CHECKING:
    from tests.harness.ssh.frontdoor import Entrance
    from tests.harness.ssh.openssh import Client, Done

COLUMNS = tomllib.loads((Path(__file__).parents[1] / "columns.toml").read_text())["cli"]


@pytest.fixture
async def client(front_door: Entrance) -> Client:
    """A client with the box `web`."""
    client = front_door.client
    assert (await client.run("cli", "up web")).status == 0
    return client


async def cli(client: Client, line: str, stdin: bytes = b"", status: int = 0) -> Done:
    """Run a command line of the CLI."""
    done = await client.run("cli", line, stdin=stdin)
    assert done.status == status, done.errors
    return done


async def start(client: Client, words: str) -> str:
    """Start a background command, and return its id."""
    done = await cli(client, f"commands start {words}")
    assert f"commands output web {done.text.strip()} --follow" in done.errors
    return done.text.strip()


async def test_a_command_from_its_start_to_its_removal(client: Client) -> None:
    number = await start(client, "--stdin web 'read x; echo $x; echo err >&2; exit 3'")
    ls = await cli(client, "commands ls web")
    assert ls.text.splitlines()[0].split() == COLUMNS["commands ls"]
    assert ls.text.splitlines()[1].split()[:2] == [number, "running"]
    assert (await cli(client, f"commands write web {number} --close", b"hello\n")).text == ""
    done = await cli(client, f"commands output web {number} --follow", status=3)
    assert (done.text, done.errors) == ("hello\n", "err\n")
    done = await cli(client, f"commands output web {number} --offset 2")
    assert (done.text, done.errors) == ("llo\n", "err\n")
    assert "exited 3" in (await cli(client, "commands ls web")).text
    removed = await cli(client, f"commands rm web {number}")
    assert removed.text == f"removed {number} (exited 3)\n"
    done = await cli(client, f"commands output web {number}", status=1)
    assert f"no background command {number}" in done.errors


async def test_words_are_a_program_and_its_arguments(client: Client) -> None:
    number = await start(client, "web -- printf '%s|' 'a b' '$HOME'")
    assert (await cli(client, f"commands output web {number} --follow")).text == "a b|$HOME|"


async def test_signals(client: Client) -> None:
    number = await start(client, "--no-keep-awake --timeout 1h web sleep 1000")
    done = await cli(client, f"commands signal web {number} INT")
    assert done.text.splitlines()[0].split() == COLUMNS["commands signal"]
    await cli(client, f"commands output web {number} --follow", status=130)
    assert "has ended" in (await cli(client, f"commands signal web {number} INT", status=1)).errors
    assert (
        "one of HUP" in (await cli(client, f"commands signal web {number} ABRT", status=1)).errors
    )


async def test_json(client: Client) -> None:
    done = await cli(client, "commands start web --json -- 'echo out; echo err >&2'")
    number = json.loads(done.text)["id"]
    done = await cli(client, f"commands output web {number} --follow --json")
    *events, last = [json.loads(line) for line in done.text.splitlines()]
    assert {"stdout": base64.b64encode(b"out\n").decode(), "next_offset": 4} in events or (
        {"stdout": base64.b64encode(b"out\n").decode(), "next_offset": 8} in events
    )
    assert (last["state"], last["exit_code"]) == ("exited", 0)
    [listed] = json.loads((await cli(client, "commands ls web --json")).text)
    assert listed == last
    assert json.loads((await cli(client, f"commands rm web {number} --json")).text) == last


async def test_dropped_output_is_noted(client: Client) -> None:
    number = await start(client, f"web 'head -c {command_messages.CAPACITY + 5} /dev/zero'")
    await cli(client, f"commands output web {number} --follow")
    done = await cli(client, f"commands output web {number}")
    assert done.errors == "boxd: 5 bytes of output are no longer stored\n"
    assert len(done.text) == command_messages.CAPACITY
