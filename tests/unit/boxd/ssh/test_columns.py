"""Every command of the CLI: its table has the columns of `tests/ssh/columns.toml`, its JSON
is one document, and nothing that users wrote moves a cursor."""

from __future__ import annotations

import json
import shlex
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from boxd.ssh.cli.registry import CLI
from tests.harness.console import Typed, run
from tests.harness.world import ALICE

if TYPE_CHECKING:
    from tests.harness.world import World

FILE = tomllib.loads((Path(__file__).parents[3] / "ssh/columns.toml").read_text())
COLUMNS: dict[str, list[str]] = FILE["cli"]
PLAIN: list[str] = FILE["plain"]["cli"]

BEFORE = (
    "up web",
    "up other",
    "ws create api",
    "profiles set py --image debian",
    "snapshot create web one",
)
"""What the commands are about."""
LINES = {
    "up": "up third",
    "stat": "stat web",
    "suspend": "suspend web",
    "resume": "resume web",
    "pin": "pin web",
    "unpin": "unpin web",
    "snapshot create": "snapshot create web",
    "snapshot restore": "snapshot restore web one",
    "snapshot fork": "snapshot fork web fork",
    "snapshot rm": "snapshot rm web one",
    "share": "share web",
    "share create": "share create web",
    "share rm": "share rm {share}",
    "profiles set": "profiles set two --image debian",
    "profiles build": "profiles build built --from web",
    "profiles show": "profiles show py",
    "profiles rm": "profiles rm py",
    "ws create": "ws create more",
    "ws profile": "ws profile api py",
    "ws rm": "ws rm api",
    "secret set": "secret set TOKEN",
    "secret rm": "secret rm KEPT",
    "asks answer": "asks answer {ask} yes",
    "agent set": "agent set --cmd run --env TOKEN",
    "apikeys create": "apikeys create laptop",
    "apikeys rm": "apikeys rm kept",
    "rm": "rm other",
    "info": "info web",
}
"""Of commands that need more than their words."""


async def prepared(world: World, name: str) -> str:
    """The line of a command, once there is what it is about."""
    for line in BEFORE:
        assert (await run(world, line)).status == 0
    await run(world, "secret set KEPT", stdio=Typed([b"x"]))
    await run(world, "agent set --cmd kept --env KEPT", stdio=Typed([b"x"]))
    await run(world, "apikeys create kept")
    await run(world, "share web")
    (share,) = await world.store.shares(ALICE.owner)
    (box, *_) = await world.store.boxes(ALICE.owner)
    asked = {"question": "Go on?", "options": ["yes", "no"]}
    told = await world.operations.asks.request_of_box(box.id, "ask", asked)
    return LINES.get(name, name).format(share=share.id, ask=told["ask"])


def names() -> list[str]:
    return [command.name for command in CLI.commands]


def test_every_command_is_in_the_file() -> None:
    assert set(names()) == {*COLUMNS, *PLAIN}


@pytest.mark.parametrize("name", COLUMNS)
async def test_tables_have_the_columns_of_the_file(sleepy: World, name: str) -> None:
    line = await prepared(sleepy, name)
    done = await run(sleepy, line, stdio=Typed([b"value"]))
    assert (done.status, done.stdout.split("\n")[0]) == (0, header(done.stdout, COLUMNS[name]))
    assert len(done.stdout.splitlines()) > 1


def header(text: str, columns: list[str]) -> str:
    """The columns at the places where the rows have them."""
    line = text.split("\n")[0]
    rest, found = line, []
    for column in columns:
        assert rest.startswith(column), line
        found.append(column)
        rest = rest[len(column) :].lstrip()
    assert not rest, line
    return line


@pytest.mark.parametrize("name", [one for one in names() if one != "mcp"])
async def test_json_is_one_document_and_text_is_another(sleepy: World, name: str) -> None:
    line = await prepared(sleepy, name)
    done = await run(sleepy, f"{line} --json", stdio=Typed([b"value"]))
    assert done.status == 0, done.stderr
    assert done.stdout.count("\n") == 1
    json.loads(done.stdout)
    for note in done.stderr.splitlines():
        assert list(json.loads(note)) == ["note"]


@pytest.mark.parametrize("name", names())
async def test_refusals_are_documents_and_usage_has_a_status_of_its_own(
    sleepy: World, name: str
) -> None:
    done = await run(sleepy, f"{name} --no-such --json")
    assert (done.status, done.stdout) == (2, "")
    assert list(json.loads(done.stderr)) == ["error"]


async def test_examples_of_help_are_whole_command_lines(sleepy: World) -> None:
    pages = json.loads((await run(sleepy, "help --json")).stdout)
    assert [page["command"] for page in pages] == names()
    for page in pages:
        words = shlex.split(page["example"].partition(" <")[0].partition(" >>")[0])
        # What the client's shell leaves is split once more.
        command, rest = CLI.find(shlex.split(" ".join(words)))
        assert command.name == page["command"]
        command.parser().parse_args(list(rest))


async def test_what_users_wrote_cannot_move_a_cursor(sleepy: World) -> None:
    await prepared(sleepy, "ls")
    evil = "a\x1b[2Jb\u202ec"
    lines = [
        f"pin web --why '{evil}'",
        f"agent set --cmd '{evil}' --env T",
        f"info '{evil}'",
        f"ws create '{evil}'",
        f"secret set '{evil}'",
        f"'{evil}'",
        f"help '{evil}'",
        f"stat '{evil}'",
        f"ssh-config '{evil}'",
        f"ssh-config -i '{evil}'",
    ]
    for line in lines:
        done = await run(sleepy, line, stdio=Typed([b"x"]))
        for shown in (done.stdout + done.stderr).split("\n"):
            assert shown.isprintable(), line


async def test_mcp_is_not_served_where_nothing_does(sleepy: World) -> None:
    done = await run(sleepy, "mcp")
    assert (done.status, done.stdout, done.stderr) == ((1, "", "this service does not serve MCP\n"))


async def test_ls_shows_why_a_box_stays_awake(sleepy: World) -> None:
    """Details have a column of their own only where a box has one."""
    await run(sleepy, "up web")
    [box] = await sleepy.store.all_boxes()
    assert "DETAIL" not in (await run(sleepy, "ls")).stdout
    why = "could not be suspended: `strace` (pid 41) is tracing `sh` (pid 40)"
    await sleepy.store.change_box(box.id, detail=why)
    shown = (await run(sleepy, "ls")).stdout
    assert "DETAIL" in shown
    assert why in shown
