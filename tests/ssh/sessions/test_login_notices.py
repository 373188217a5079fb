"""Reports of unused boxes at a login with OpenSSH: their readers, place and frequency."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

import pytest

from tests.harness.ssh.openssh import HOST, run

if TYPE_CHECKING:
    from tests.harness.ssh.frontdoor import Entrance
    from tests.harness.ssh.openssh import Client, Done

NOTICE = re.compile(r"box (\S+) is unused: it will be removed in (\S+)")


async def login(client: Client, user: str = "web") -> Done:
    """A person's shell at a terminal, which ends at once."""
    done = await client.shell(user, "-tt", stdin=b"exit\n")
    assert done.status == 0, done.errors
    assert "unused" not in done.text
    return done


async def up(client: Client, *specs: str) -> None:
    """Boxes that nobody uses. Boxes of these tests cannot be suspended."""
    for spec in specs:
        done = await client.run("cli", f"up {shlex.quote(spec)}")
        assert done.status == 0, done.errors


async def test_a_login_names_an_unused_box_once_and_how_to_keep_it(front_door: Entrance) -> None:
    client = front_door.client
    await up(client, "old", "lasting!", "web!")
    lines = (await login(client)).errors.splitlines()
    assert len(lines) == 2
    notice = NOTICE.fullmatch(lines[0])
    assert notice is not None, lines
    assert notice[1] == "old"
    assert notice[2] in ("2h59m", "3h")
    keep = f"ssh -p {client.port} cli@{HOST} keep old"
    assert lines[1] == f"to keep it: {keep}"
    assert (await login(client)).errors == ""
    command = keep.partition(f"cli@{HOST} ")[2]
    assert (await client.run("cli", command)).status == 0
    assert [box.durable for box in await front_door.store.all_boxes()] == [True] * 3


async def test_many_boxes_take_a_few_lines(front_door: Entrance) -> None:
    client = front_door.client
    await up(client, "web!", "a", "b", "ws1/c", "d", "e")
    lines = (await login(client)).errors.splitlines()
    listed = [notice[1] for line in lines if (notice := NOTICE.fullmatch(line))]
    assert listed == ["a", "b", "ws1/c"]
    cli = f"ssh -p {client.port} cli@{HOST}"
    assert lines[3:] == [
        f"2 more unused boxes will be removed; see: {cli} ls",
        f"to keep them: {cli} keep a b ws1/c",
    ]


@pytest.mark.parametrize("options", [["-T"], ["-T", "true"], ["-tt", "true"], ["-T", "-s", "sftp"]])
async def test_programs_get_no_notice(front_door: Entrance, options: list[str]) -> None:
    client = front_door.client
    await up(client, "old", "web!")
    if options == ["-T"]:
        done = await client.shell("web", "-T", stdin=b"exit\n")
    else:
        done = await client.run("web", *options)
    assert "unused" not in done.errors + done.text
    assert "old" in (await login(client)).errors  # a person has not seen it yet


async def test_only_the_owner_hears_of_unused_boxes(front_door: Entrance) -> None:
    client, other = front_door.client, front_door.new_client("other")
    await up(client, "old", "web!")
    assert (await login(other)).errors.splitlines() == ["creating web ..."]
    share = await client.run("cli", "share web")
    token = re.search(r"svcs_[0-9a-f]{32}", share.text)
    assert token is not None
    assert (await login(other, token[0])).errors == ""
    assert "box old is unused" in (await login(client)).errors


async def test_a_mark_in_the_user_name_keeps_a_box(front_door: Entrance) -> None:
    client = front_door.client
    done = await client.run("web!", "echo made")
    assert (done.status, done.text, done.errors) == (0, "made\n", "")
    await client.run("db", "true")
    done = await client.run("db!", "echo same")
    note = "box db is durable now: it is removed only by rm, or at its deadline\n"
    assert (done.status, done.text, done.errors) == (0, "same\n", note)
    again = await client.run("DB!:debian+5m", "echo same")
    assert (again.status, again.text, again.errors) == (0, "same\n", "")
    assert [box.durable for box in await front_door.store.all_boxes()] == [True, True]
    for user, text in (
        ("web:debian!", "'!' must follow the name directly"),
        ("_!", "a throwaway box cannot be durable"),
        ("session-web!", "'web!' is not a box reference"),
    ):
        refused = await client.run(user, "true")
        assert (refused.status, text in refused.errors) == (255, True), refused.errors


async def test_a_confidential_box_can_be_durable(front_door: Entrance) -> None:
    client = front_door.client
    done = await run(client.jump("vault!", "echo inside"))
    assert (done.status, done.text) == (0, "inside\n"), done.errors
    (box,) = await front_door.store.all_boxes()
    assert (box.name, box.confidential, box.durable) == ("vault", True, True)
