"""The output of every CLI command.

The table has the columns of `tests/ssh/columns.toml`. The JSON is one document. No text of a user
moves the cursor.
"""

from __future__ import annotations

import json
import shlex
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from boxd.ssh.cli.registry import CLI
from tests.harness.simulation.world import ALICE
from tests.harness.ssh.console import Typed, run

if TYPE_CHECKING:
    from tests.harness.simulation.world import World

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
"""Command lines that create the objects of the tests."""
LINES = {
    "up": "up third",
    "stat": "stat web",
    "suspend": "suspend web",
    "resume": "resume web",
    "pin": "pin web",
    "unpin": "unpin web",
    "keep": "keep web",
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
    "secret rm": "secret rm OLD",
    "asks answer": "asks answer {ask} yes",
    "agent set": "agent set --cmd run --env TOKEN",
    "apikeys create": "apikeys create laptop",
    "apikeys rm": "apikeys rm old",
    "rm": "rm other",
    "info": "info web",
}
"""Command lines of commands that need arguments."""


async def prepared(world: World, name: str) -> str:
    """Create the objects of a command, and return its command line."""
    for line in BEFORE:
        assert (await run(world, line)).status == 0
    await run(world, "secret set OLD", stdio=Typed([b"x"]))
    await run(world, "agent set --cmd old --env OLD", stdio=Typed([b"x"]))
    await run(world, "apikeys create old")
    await run(world, "share web")
    (share,) = await world.store.shares(ALICE.owner)
    (box, *_) = await world.store.boxes(ALICE.owner)
    question = {"question": "Go on?", "options": ["yes", "no"]}
    answer = await world.operations.asks.request_of_box(box.id, "ask", question)
    return LINES.get(name, name).format(share=share.id, ask=answer["ask"])


def command_names() -> list[str]:
    return [command.name for command in CLI.commands]


def needs_agent(name: str) -> bool:
    """These commands ask the agent of a box: `tests/ssh/console` tests their output."""
    return name == "ports" or name.startswith("commands ")


def test_every_command_is_in_the_file() -> None:
    assert set(command_names()) == {*COLUMNS, *PLAIN}


@pytest.mark.parametrize("name", [name for name in COLUMNS if not needs_agent(name)])
async def test_tables_have_the_columns_of_the_file(sleepy: World, name: str) -> None:
    line = await prepared(sleepy, name)
    result = await run(sleepy, line, stdio=Typed([b"value"]))
    assert (result.status, result.stdout.split("\n")[0]) == (
        0,
        header(result.stdout, COLUMNS[name]),
    )
    assert len(result.stdout.splitlines()) > 1


def header(text: str, columns: list[str]) -> str:
    """Return the header line; fail if it does not have exactly these columns."""
    line = text.split("\n")[0]
    rest = line
    for column in columns:
        assert rest.startswith(column), line
        rest = rest[len(column) :].lstrip()
    assert not rest, line
    return line


@pytest.mark.parametrize(
    "name", [name for name in command_names() if name != "mcp" and not needs_agent(name)]
)
async def test_json_is_one_document(sleepy: World, name: str) -> None:
    line = await prepared(sleepy, name)
    result = await run(sleepy, f"{line} --json", stdio=Typed([b"value"]))
    assert result.status == 0, result.stderr
    assert result.stdout.count("\n") == 1
    json.loads(result.stdout)
    for note in result.stderr.splitlines():
        assert list(json.loads(note)) == ["note"]


@pytest.mark.parametrize("name", command_names())
async def test_usage_errors_are_documents_with_their_own_status(sleepy: World, name: str) -> None:
    result = await run(sleepy, f"{name} --no-such --json")
    assert (result.status, result.stdout) == (2, "")
    assert list(json.loads(result.stderr)) == ["error"]


async def test_examples_of_help_are_valid_command_lines(sleepy: World) -> None:
    pages = json.loads((await run(sleepy, "help --json")).stdout)
    assert [page["command"] for page in pages] == command_names()
    for page in pages:
        words = shlex.split(page["example"].partition(" <")[0].partition(" >>")[0])
        # The client's shell splits the line once, and the console splits it again.
        command, rest = CLI.find(shlex.split(" ".join(words)))
        assert command.name == page["command"]
        command.parser().parse_args(list(rest))


async def test_no_text_of_a_user_can_move_the_cursor(sleepy: World) -> None:
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
        result = await run(sleepy, line, stdio=Typed([b"x"]))
        for text in (result.stdout + result.stderr).split("\n"):
            assert text.isprintable(), line


async def test_mcp_without_a_server_is_rejected(sleepy: World) -> None:
    result = await run(sleepy, "mcp")
    assert (result.status, result.stdout, result.stderr) == (
        1,
        "",
        "this service does not serve MCP\n",
    )


async def test_ls_shows_why_a_box_stays_awake(sleepy: World) -> None:
    """The DETAIL column appears only if a box has a detail."""
    await run(sleepy, "up web")
    [box] = await sleepy.store.all_boxes()
    assert "DETAIL" not in (await run(sleepy, "ls")).stdout
    why = "could not be suspended: `strace` (pid 41) is tracing `sh` (pid 40)"
    await sleepy.store.change_box(box.id, detail=why)
    listing = (await run(sleepy, "ls")).stdout
    assert "DETAIL" in listing
    assert why in listing
