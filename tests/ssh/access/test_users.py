"""Usernames and the management CLI, with the stock OpenSSH client."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from boxd.secret import digest
from boxd.ssh.cli.registry import CLI

if TYPE_CHECKING:
    from tests.harness.ssh.frontdoor import Entrance
    from tests.harness.ssh.openssh import Client


LS = ["NAME", "ID", "STATE", "ATTACHED", "IMAGE", "FLAVOR", "AGE", "DEADLINE", "NEXT", "REMOVAL"]


async def as_json(client: Client, line: str) -> Any:  # noqa: ANN401 - JSON of any command
    """stdout of a command as JSON; it must succeed, and may have notes."""
    done = await client.run("cli", f"{line} --json")
    assert done.status == 0
    assert all(json.loads(note).keys() == {"note"} for note in done.errors.splitlines())
    return json.loads(done.text)


@pytest.mark.parametrize(
    ("user", "says"),
    [
        ("we_b", "'we_b' is not valid"),
        ("web:", "the image after ':' is missing"),
        ("web^5", "deadline '^ttl' '5' is not valid"),
        ("web+5m^1h", "^ttl must precede +duration"),
        ("cli/web", "workspace name 'cli' is reserved"),
        ("web:nosuch", "nosuch"),
        ("session-", "not a box reference"),
        ("session-nothing", "no box 'nothing'; see: ssh -p "),
        ("jump", "jump only relays: ssh -J jump@127.0.0.1:"),
        ("svcs_" + "0" * 32, "this share link is not valid or has expired"),
        ("we b\u00e9", "'we b\u00e9'"),
        ("x" * 600, "600 characters"),
    ],
)
async def test_a_user_that_means_nothing_is_told_why(
    front_door: Entrance, user: str, says: str
) -> None:
    for words in (["true"], ["-s", "sftp"]):
        done = await front_door.client.run(user, *words)
        assert (done.status, done.stdout) == (255, b"")
        assert says in done.errors
        assert done.errors.rstrip("\n").isprintable()
    assert await front_door.store.all_boxes() == []


@pytest.mark.parametrize("user", ["images", "image", "IMAGES"])
async def test_the_catalog(front_door: Entrance, user: str) -> None:
    for done in (await front_door.client.shell(user), await front_door.client.run(user, "x")):
        assert (done.status, done.errors) == (0, "")
        assert done.text == "NAME    BUILT  DESCRIPTION\ndebian  yes    this machine\n"
    assert await front_door.store.all_boxes() == []


async def test_help_is_the_default_and_lists_every_command(front_door: Entrance) -> None:
    client = front_door.client
    texts = {(await client.shell("cli")).text, (await client.run("cli", "help")).text}
    texts |= {(await client.shell("help")).text, (await client.run("help", "x")).text}
    assert len(texts) == 1
    overview = texts.pop()
    assert "(-R) is not supported" in overview
    # The explanations of the first examples begin in one column.
    examples = overview.splitlines()[1:5]
    starts = {line.rindex("  ") for line in examples}
    assert len(starts) == 1, examples
    for command in CLI.commands:
        assert f"  {command.name} " in overview
        page = await client.run("cli", f"help {command.name}")
        assert command.synopsis in page.text
    assert {entry["command"] for entry in await as_json(client, "help")} == {
        command.name for command in CLI.commands
    }


async def test_boxes_are_listed_shown_and_removed(front_door: Entrance) -> None:
    client = front_door.client
    empty = await client.run("cli", "ls")
    assert empty.text.split() == LS
    up = await client.run("cli", "up 'ws1/web:debian:large^2h'")
    assert up.status == 0
    (box,) = await front_door.store.all_boxes()
    header, row = (line.split() for line in up.text.splitlines())
    shown = dict(zip(header, row, strict=False))
    assert shown["NAME"] == "ws1/web"
    assert shown["ID"] == box.id[:12]
    assert (shown["STATE"], shown["ATTACHED"]) == ("running", "0")
    assert (shown["IMAGE"], shown["FLAVOR"]) == ("debian", "large")
    assert shown["NEXT"] == "removed"
    wide = (await client.run("cli", "ls --wide")).text
    heads = "CPUS MEM MiB CPU % CPU s MEM USED DISK USED PIDS RECEIVED SENT WHY SSH PREVIEW DETAIL"
    assert " ".join(wide.splitlines()[0].split()).endswith(heads)
    assert f"ssh -p {client.port} 'ws1/web'@127.0.0.1" in wide
    (listed,), info = await as_json(client, "ls"), await as_json(client, "info ws1/web")
    assert listed["ssh_dest"] == f"ssh -p {client.port} 'ws1/web'@127.0.0.1"
    fresh = {"age_s": 0, "usage": None}
    assert listed | fresh == info | fresh
    assert info["usage"]["pids"] == 1
    mistyped = await client.run("cli", "ls -w wss1")
    assert (mistyped.status, mistyped.text) == (1, "")
    assert "no workspace 'wss1'; did you mean ws1?; see: ws ls" in mistyped.errors
    assert [entry["id"] for entry in await as_json(client, "ls -w ws1")] == [box.id]
    text = (await client.run("cli", "info -w ws1 web")).text
    assert f" {box.id}\n" in text
    assert ["processes:", "1"] in [line.split() for line in text.splitlines()]
    removed = await client.run("cli", f"rm {box.id[:8]}")
    assert (removed.status, removed.text) == (0, f"removed ws1/web {box.id[:12]}\n")
    assert await front_door.store.all_boxes() == []


async def test_rm_does_what_it_can_and_says_what_it_cannot(front_door: Entrance) -> None:
    client = front_door.client
    for name in ("one", "two"):
        assert (await client.run("cli", f"up {name}")).status == 0
    done = await client.run("cli", "rm one nothing two")
    assert done.status == 1
    assert [line.split()[1] for line in done.text.splitlines()] == ["one", "two"]
    assert "no box 'nothing'" in done.errors
    assert await front_door.store.all_boxes() == []


async def test_an_ambiguous_reference_names_its_candidates(front_door: Entrance) -> None:
    client = front_door.client
    await client.run("cli", "up web")
    (box,) = await front_door.store.all_boxes()
    await client.run("cli", f"up {box.id[:6]}")  # a name that begins the other's id
    done = await client.run("cli", f"rm {box.id[:6]}")
    assert done.status == 1
    assert box.id in done.errors
    assert "ambiguous" in done.errors
    assert len(await front_door.store.all_boxes()) == 2


async def test_keys_are_made_listed_and_revoked(front_door: Entrance) -> None:
    client = front_door.client
    refused = await client.run("cli", "apikeys create laptop -w ws1")
    assert (refused.status, refused.text) == (1, "")
    assert "no workspace 'ws1'" in refused.errors
    assert (await client.run("cli", "ws create ws1")).status == 0
    made = await client.run("cli", "apikeys create laptop --ttl 1d -w ws1")
    assert made.status == 0
    key = made.text.strip()
    assert key.startswith("svc_")
    assert len(key) == 44
    assert key not in made.errors
    assert "shown only once" in made.errors
    stored = await front_door.store.find_key(digest(key), datetime.now(UTC))
    assert stored is not None
    assert (stored.owner, stored.scope) == (client.fingerprint(), "ws1")
    listed = (await client.run("cli", "apikeys ls")).text
    header, row = listed.splitlines()
    assert header.split("  ")[0] == "NAME"
    assert "LAST USED" in header
    assert row.split()[:2] == ["laptop", "ws1"]
    assert key not in listed
    again = await client.run("cli", "apikeys create laptop")
    assert again.status == 1
    document = await as_json(client, "apikeys create second")
    assert document["scope"] is None
    assert len(document["key"]) == 44
    assert (await client.run("cli", "apikeys rm laptop")).text == "removed laptop\n"
    assert await front_door.store.find_key(digest(key), datetime.now(UTC)) is None
    assert (await client.run("cli", "apikeys rm laptop")).status == 1


@pytest.mark.parametrize(
    ("line", "status", "says"),
    [
        ("nonsense", 2, "there is no command 'nonsense'; see: help"),
        ("apikey ls", 2, "did you mean apikeys?"),
        ("secret sett", 2, "did you mean secret set?"),
        ("help resum", 2, "did you mean resume?"),
        ("secret set PATH", 1, "'PATH' is reserved"),
        ("apikeys", 2, "apikeys needs one of: apikeys create"),
        ("rm", 2, "usage: rm"),
        ("ls --nonsense", 2, "usage: ls"),
        ("ls --wid", 2, "usage: ls"),
        ("ls 'unfinished", 2, "cannot be read"),
        ("up web:nosuch", 1, "nosuch"),
        ("up we_b", 2, "not valid"),
        ("up _", 2, "reserved"),
        ("info nothing", 1, "no box"),
        ("apikeys create laptop --ttl 0s", 2, "must be positive"),
        ("apikeys create 'a b'", 2, "not valid"),
        ("rm 'we\x1bb'", 1, "\\x1b"),
    ],
)
async def test_command_lines_that_fail(
    front_door: Entrance, line: str, status: int, says: str
) -> None:
    done = await front_door.client.run("cli", line)
    assert (done.status, done.stdout) == (status, b"")
    assert says in done.errors
    assert "\x1b" not in done.errors
    told = await front_door.client.run("cli", f"{line} --json")
    assert (told.status, told.stdout.strip()) in [(status, b""), (status, b"[]")]
    if "unfinished" not in line:  # where the words cannot be told apart, no option is seen
        assert set(json.loads(told.errors)) == {"error"}


async def test_flavors_and_images_as_json(front_door: Entrance) -> None:
    client = front_door.client
    assert await as_json(client, "images") == [
        {"name": "debian", "description": "this machine", "built": True}
    ]
    flavors = await as_json(client, "flavors")
    small = {"name": "small", "description": "for tests", "cpus": 1.0, "mem_mb": 512}
    kind = {"runtime": "", "containers": False}
    assert flavors[0] == {**small, "disk_mb": 0, "pids": 512, **kind}
    table = (await client.run("cli", "flavors")).text
    head = ["NAME", "CPUS", "MEM MiB", "DISK MiB", "PIDS", "DESCRIPTION"]
    assert re.split(r" {2,}", table.splitlines()[0]) == head


async def test_words_are_quoted_as_in_a_shell_and_never_run(front_door: Entrance) -> None:
    done = await front_door.client.run("cli", 'up "web; touch /tmp/never" $(id)')
    assert done.status == 2
    done = await front_door.client.run("cli", "'help'  'ls'")
    assert done.text.startswith("ls [-w WS] [--wide]")
