"""The authorisation matrix, cell by cell, on a service that is reached as users reach it.

What a cell changes is counted in control store, drives and backend; after a change the next cell
has a fresh service. Whatever the cell says, nobody changes what is another's, and nobody reads of
what he may not see.
"""

from __future__ import annotations

import secrets
from dataclasses import replace
from typing import TYPE_CHECKING, get_args

import pytest

from boxd.http.proxy import preview
from boxd.ssh.admin.console import CONSOLE
from boxd.ssh.cli.registry import CLI
from boxd.ssh.connection import router
from tests.harness.authorisation.cells import begin, credential, hidden
from tests.harness.authorisation.house import Estate, changes, estate
from tests.harness.authorisation.matrix import COLUMNS, COOKIES, SSH_COLUMNS, TRANSPORTS, Cell, load
from tests.harness.http.rawhttp import Request

if TYPE_CHECKING:
    from collections.abc import Iterable

    from boxd.http.routes.route import Route
    from tests.harness.authorisation.house import Furnished
    from tests.harness.authorisation.matrix import Row, Transport
    from tests.harness.http.rawhttp import Answer

pytestmark = pytest.mark.promise("S1")

MATRIX = load()
ANY_METHOD = ("GET", "POST", "PURGE")
"""What stands for a route that takes every method."""


def operations_of(routes: Iterable[Route]) -> set[str]:
    """What a list of routes serves, and preview hosts with it, as rows name it."""
    found = {f"{method} {preview.ROUTE}" for method in (*ANY_METHOD, "WS")}
    for route in routes:
        methods = route.methods or ANY_METHOD
        found |= {f"{method} {route.path}" for method in methods}
        if route.socket:
            found.add(f"WS {route.path}")
    return found


async def test_everything_that_is_served_has_a_row_and_every_row_is_about_something() -> None:
    async with estate() as owned:
        served = operations_of((await owned.house()).api.routes)
    assert {row.get("route") for row in MATRIX.http} == served
    for console, section in ((CLI, "cli"), (CONSOLE, "sudo")):
        commands = {command.name for command in console.commands}
        assert {row.name for row in MATRIX.ssh[section]} == commands
    cases = {case.__name__ for case in get_args(router.Route)}
    assert {row.get("case") for row in MATRIX.ssh["users"]} == cases


async def _target(house: Furnished, row: Row, column: str) -> str:
    """Path and query of a row, about the box that the column is about."""
    way = COLUMNS[column].addresses if column in COLUMNS else "name"
    box_id = await house.box_id("web")
    box = {"other workspace": "web", "workspace/name": "ws2%2Fweb", "id": box_id}.get(way, "web")
    path = row.get("path", row.get("route").partition(" ")[2])
    (ask,) = await house.house.store.asks(house.alice.owner)
    shares = await house.house.store.shares(house.alice.owner)
    share = next((one.id for one in shares if one.expires is None), "")
    words = {"{box}": box, "{id}": box_id, "{port}": str(house.app)}
    words |= {"{ask}": ask.id, "{share}": share, "{dir}": str(house.house.root)}
    for word, what in words.items():
        path = path.replace(word, what)
    if way == "other workspace":
        path += ("&" if "?" in path else "?") + "ws=ws2"
    return path


def _shown(request: Request, transport: Transport, credential: str) -> Request:
    """The request with a credential in one place."""
    if transport == "query":
        mark = "&" if "?" in request.target else "?"
        return replace(request, target=f"{request.target}{mark}key={credential}")
    header = {
        "bearer": ("Authorization", f"Bearer {credential}"),
        "x_api_key": ("X-Api-Key", credential),
        "cookie": ("Cookie", f"svc_proxy={credential}"),
    }[transport]
    return replace(request, headers=(*request.headers, header))


async def _request(house: Furnished, row: Row, column: str) -> Request:
    named = {"type": "Content-Type", "accept": "Accept", "origin": "Origin"}
    named |= {"asks_for": "Access-Control-Request-Method", "prefer": "Prefer"}
    headers = tuple((named[one], row.get(one)) for one in named if one in row.what)
    body = row.get("body").encode() if "body" in row.what else None
    method = row.get("route").partition(" ")[0]
    made = Request(method, await _target(house, row, column), headers, body)
    if "host" not in row.what:
        return made
    # Users of a preview host name the box by its id, unless it is in their default workspace.
    way = COLUMNS[column].addresses if column in COLUMNS else "id"
    box = "web" if way == "name" else await house.box_id("web")
    return replace(made, host=row.get("host").format(box=box, port=house.app))


def _host(row: Row, request: Request) -> str | None:
    """The preview host that a request is for."""
    return request.host if "host" in row.what else None


async def _check(
    owned: Estate, row: Row, column: str, transport: Transport | None, cell: Cell
) -> list[str]:
    """Runs one cell; what is wrong with it, one line each."""
    house = await owned.house()
    await begin(house, row)
    request = await _request(house, row, column)
    if transport is not None:
        request = _shown(request, transport, await credential(house, column, _host(row, request)))
    before, unseen = await house.picture(), await hidden(house, column)
    answer = await house.ask(request)
    after = await house.picture()
    found = changes(before, after)
    if found or "before" in row.what:
        await owned.used_up()
    error = "ok" if answer.status < 400 else MATRIX.error(answer.error)
    if answer.status >= 400 and request.method == "HEAD":
        error = cell.error
    told = Cell(answer.status, error, ", ".join(sorted(set(found.values()))))
    place = f"{row.name} / {column} / {transport}"
    wrong = [] if told == cell else [f"{place}: {told}, not {cell}"]
    whose = COLUMNS[column].whose if column in COLUMNS else "alice"
    owner = house.people[whose].owner if whose else ""
    wrong += [f"{place}: {what} of another" for thing, what in found.items() if thing[1] != owner]
    seen = (answer.body + b"\n".join(answer.head)).decode("utf-8", "replace")
    wrong += [
        f"{place}: the answer holds {one}"
        for one in unseen
        if one in seen and one not in request.target + request.host
    ]
    return wrong


@pytest.mark.timeout(300)
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_cells_of_http(transport: Transport) -> None:
    wrong = []
    async with estate() as owned:
        for row in MATRIX.http:
            for column in COLUMNS:
                cell = row.by(column, transport)
                if cell is not None and column != "none":
                    wrong += await _check(owned, row, column, transport, cell)
    if wrong:
        pytest.fail("\n".join(wrong))


async def test_cells_of_http_without_a_key() -> None:
    wrong = []
    async with estate() as owned:
        for row in MATRIX.http:
            wrong += await _check(owned, row, "none", None, row.cells["none"])
            for column in COOKIES:
                wrong += await _check(owned, row, column, "cookie", row.cells[column])
    if wrong:
        pytest.fail("\n".join(wrong))


async def _refusals(house: Furnished, row: Row) -> set[Answer]:
    """The answers of a row to all that is no good."""
    found = set()
    for column, told in COLUMNS.items():
        request = await _request(house, row, column)
        if column == "none":
            found.add(await house.ask(request))
        elif told.refused:
            for transport in TRANSPORTS:
                shown = _shown(
                    request, transport, await credential(house, column, _host(row, request))
                )
                found.add(await house.ask(shown))
    return found


async def test_refusals_are_the_same_bytes_whatever_is_wrong_with_a_key() -> None:
    heads = set()
    async with estate() as owned:
        house = await owned.house()
        for row in MATRIX.http:
            if row.get("kind") == "public":
                continue
            (answer,) = await _refusals(house, row)
            # How the connection ends is up to the request: a body that is not read ends it.
            heads.add(
                tuple(one for one in answer.head if not one.lower().startswith(b"connection"))
            )
            silent = row.get("route").startswith("HEAD ")
            assert answer.body == (b"" if silent else b'{"error": "invalid API key"}')
    assert len(heads) == 1, heads
    (head,) = heads
    assert head[0].startswith(b"HTTP/1.1 401 ")


async def test_the_id_of_a_foreign_box_and_one_of_no_box_are_answered_alike() -> None:
    async with estate() as owned:
        house = await owned.house()
        foreign, random = await house.box_id("web"), secrets.token_hex(16)
        for row in MATRIX.http:
            if row.get("kind") != "box":
                continue
            for column in ("scoped_foreign_id", "other_owner", "other_owner_scoped", "admin"):
                request = await _request(house, row, column)
                request = _shown(
                    request, "bearer", await credential(house, column, _host(row, request))
                )
                twin = replace(
                    request,
                    target=request.target.replace(foreign, random),
                    host=request.host.replace(foreign, random),
                )
                assert twin != request
                first, second = await house.ask(request), await house.ask(twin)
                assert replace(second, body=second.body.replace(random.encode(), b"ID")) == (
                    replace(first, body=first.body.replace(foreign.encode(), b"ID"))
                )


async def _fill(house: Furnished, text: str, column: str) -> str:
    """A text of a row of SSH, with what it is about."""
    boxes = await house.box_id("web")
    (share, *_) = await house.house.store.shares(house.alice.owner)
    (ask,) = await house.house.store.asks(house.alice.owner)
    shares = await house.house.store.shares(house.alice.owner)
    living = [one for one in shares if one.expires is None]
    return text.format(
        box="web" if column == "own" else boxes,
        id=boxes,
        share=(living or [share])[0].id,
        ask=ask.id,
        alice=house.alice.owner,
        **{f"share_{name}": token for name, token in house.shares.items()},
    )


async def _check_typed(owned: Estate, row: Row, column: str) -> list[str]:
    """As `_check`, of SSH."""
    house, cell = await owned.house(), row.cells[column]
    await begin(house, row)
    who = {"none": None, "own": "alice", "other_owner": "bob", "admin": "admin"}[column]
    user = await _fill(house, row.get("user"), column)
    line = None if row.what["line"] is None else await _fill(house, row.get("line"), column)
    before = await house.picture()
    done = await house.type(who, user, line, row.get("stdin"))
    found = changes(before, await house.picture())
    if found or "before" in row.what:
        await owned.used_up()
    words = {what for what in found.values() if what != "made audit"}
    status = 255 if done.status is None else done.status
    error = "ok" if status == 0 else MATRIX.error(done.stderr.strip())
    told = Cell(status, error, ", ".join(sorted(words)))
    place = f"{row.get('user')} {row.name} / {column}"
    wrong = [] if told == cell else [f"{place}: {told}, not {cell}"]
    if user != "sudo":
        owner = house.people[who].owner if who else ""
        wrong += [f"{place}: {what} of another" for one, what in found.items() if one[1] != owner]
        if who in ("bob", "admin"):
            unseen = set(await hidden(house, "other_owner")) - {await house.box_id("web")}
            wrong += [f"{place}: it shows {one}" for one in unseen if one in done.stdout]
    elif (status == 0) != ("made audit" in found.values()):
        wrong.append(f"{place}: the audit has {found}")
    return wrong


@pytest.mark.timeout(300)
@pytest.mark.parametrize("section", MATRIX.ssh)
async def test_cells_of_ssh(section: str) -> None:
    wrong = []
    async with estate() as owned:
        for row in MATRIX.ssh[section]:
            for column in SSH_COLUMNS:
                wrong += await _check_typed(owned, row, column)
    if wrong:
        pytest.fail("\n".join(wrong))


def test_no_cell_is_missing() -> None:
    for row in MATRIX.http:
        needed = {name for name, told in COLUMNS.items() if told.refused} | {*COOKIES, "unscoped"}
        assert needed <= row.cells.keys(), row.name
    for rows in MATRIX.ssh.values():
        for row in rows:
            assert row.cells.keys() == set(SSH_COLUMNS), row.name
