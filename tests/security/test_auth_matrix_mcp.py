"""The authorisation matrix of MCP: every tool and resource, cell by cell, on a real WebSocket."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from websockets.asyncio.client import connect

from boxd.mcp.resources import STATIC_RESOURCES, TEMPLATES
from boxd.mcp.tools.registry import TOOLS
from tests.harness.authorisation.cells import begin, credential, hidden
from tests.harness.authorisation.house import Estate, changes, estate
from tests.harness.authorisation.matrix import COLUMNS, MCP_COLUMNS, Cell, load
from tests.harness.http.mcp import Talk

if TYPE_CHECKING:
    from tests.harness.authorisation.house import Furnished
    from tests.harness.authorisation.matrix import Row

pytestmark = pytest.mark.promise("S1")

MATRIX = load()


def test_every_tool_and_resource_has_a_row_and_every_row_is_about_one() -> None:
    rows = {row.get("tool", row.name) for row in MATRIX.mcp["tools"]}
    assert rows == {tool.name for tool in TOOLS}
    resources = {one.uri for one in STATIC_RESOURCES} | {template for template, *_ in TEMPLATES}
    assert {row.name for row in MATRIX.mcp["resources"]} == resources


async def _arguments(house: Furnished, row: Row, column: str) -> dict[str, Any]:
    """The arguments of a row, about what the column is about."""
    way = COLUMNS[column].addresses
    outside = way == "other workspace"
    box_id = await house.box_id("web")
    shares = await house.house.store.shares(house.alice.owner)
    share = next(one.id for one in shares if one.expires is None)
    (ask,) = await house.house.store.asks(house.alice.owner)
    words = {
        "{box}": "ws2/web" if outside else box_id if way == "id" else "web",
        "{new}": "ws2/new" if outside else "new",
        "{ws}": "ws2" if outside else None,
        "{ask}": ask.id,
        "{share}": share,
        "{dir}/written": str(house.house.root / "written"),
    }
    found = {name: words.get(str(value), value) for name, value in row.what["args"].items()}
    return {name: value for name, value in found.items() if value is not None}


async def _call(client: Talk, row: Row, arguments: dict[str, Any]) -> tuple[int, str]:
    """What came: 0, 1 or 2, and the text of it."""
    if "args" in row.what and not row.name.startswith("svc://"):
        given = {"name": row.get("tool", row.name), "arguments": arguments}
        answer = await client.ask("tools/call", given)
    else:
        answer = await client.ask("resources/read", {"uri": row.get("uri", row.name)})
    if "error" in answer:
        return 2, answer["error"]["message"]
    result = answer["result"]
    if result.get("isError"):
        return 1, result["content"][0]["text"]
    return 0, json.dumps(result)


async def _check(owned: Estate, row: Row, column: str) -> list[str]:
    """Runs one cell; what is wrong with it, one line each."""
    house, cell = await owned.house(), row.cells[column]
    await begin(house, row)
    arguments = await _arguments(house, row, column)
    before, unseen = await house.picture(), await hidden(house, column)
    shown = {"authorization": f"Bearer {await credential(house, column)}"}
    async with connect(f"ws://{house.http}/v1/mcp", additional_headers=shown) as socket:
        client = Talk(socket)
        await client.open()
        status, text = await _call(client, row, arguments)
        await client.close()
    found = changes(before, await house.picture())
    if found or "before" in row.what:
        await owned.used_up()
    error = "ok" if status == 0 else MATRIX.error(text)
    told = Cell(status, error, ", ".join(sorted(set(found.values()))))
    place = f"{row.name} / {column}"
    wrong = [] if told == cell else [f"{place}: {told}, not {cell}"]
    owner = house.people[COLUMNS[column].whose or ""].owner
    wrong += [f"{place}: {what} of another" for thing, what in found.items() if thing[1] != owner]
    given = json.dumps(arguments)
    return wrong + [
        f"{place}: the answer holds {one}" for one in unseen if one in text and one not in given
    ]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("section", MATRIX.mcp)
async def test_cells_of_mcp(section: str) -> None:
    wrong = []
    async with estate() as owned:
        for row in MATRIX.mcp[section]:
            for column in sorted(MCP_COLUMNS & row.cells.keys()):
                wrong += await _check(owned, row, column)
    if wrong:
        pytest.fail("\n".join(wrong))


def test_no_cell_is_missing() -> None:
    for rows in MATRIX.mcp.values():
        for row in rows:
            assert {"unscoped", "scoped_inside", "other_owner", "admin"} <= row.cells.keys()
