"""`boxd serve --names global`: a name in the default workspace belongs to one owner at a time."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from boxd.boxes.lifecycle.holds import AttachRequest
from boxd.boxes.state.requests import BoxRequest
from boxd.config import Address, Config
from boxd.errors import Forbidden
from boxd.names.spec import parse_spec
from tests.harness.http.web import ALICE, BOB, Web, serve_web

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from boxd.model.box import Box
    from boxd.principal import Principal

CLAIMS = "belongs to a box of another key: a box belongs to the key's fingerprint"


@pytest_asyncio.fixture
async def shared() -> AsyncIterator[Web]:
    """As `web`, where all owners share the names of default workspaces."""
    config = Config(api_addr=Address("127.0.0.1", 0), names="global")
    with tempfile.TemporaryDirectory(prefix="web-") as name:
        async with serve_web(Path(name), config=config) as served:
            yield served


async def up(web: Web, owner: Principal, text: str, workspace: str | None = None) -> Box:
    """The box of a spec, as every door makes it."""
    return await web.lifecycle.up(BoxRequest(owner.owner, workspace, parse_spec(text)))


async def test_another_key_is_refused_a_name_that_lives(shared: Web) -> None:
    box = await up(shared, ALICE, "web")
    with pytest.raises(Forbidden, match=CLAIMS):
        await up(shared, BOB, "web")
    with pytest.raises(Forbidden, match=CLAIMS):
        await up(shared, BOB, "web+")
    attaching = shared.lifecycle.attach(
        AttachRequest(BoxRequest(BOB.owner, None, parse_spec("web")), why="ssh", key_id=None)
    )
    with pytest.raises(Forbidden, match=CLAIMS):
        await attaching.__aenter__()
    answer = await shared.client(await shared.new_key(BOB)).post(
        "/v1/exec/web", content=b"true", headers={"content-type": "text/plain"}
    )
    assert answer.status_code == 403
    assert CLAIMS in answer.json()["error"]
    assert [one.id for one in await shared.store.all_boxes()] == [box.id]
    assert (await up(shared, ALICE, "web")).id == box.id


async def test_a_name_is_free_again_when_its_box_is_removed(shared: Web) -> None:
    await shared.lifecycle.remove(await up(shared, ALICE, "web"))
    assert (await up(shared, BOB, "web")).owner == BOB.owner


async def test_names_in_workspaces_stay_their_owners(shared: Web) -> None:
    await up(shared, ALICE, "web")
    assert (await up(shared, BOB, "web", "lab")).workspace == "lab"
    assert (await up(shared, ALICE, "web", "lab")).workspace == "lab"


async def test_one_of_two_owners_at_once_gets_a_name(shared: Web) -> None:
    results = await asyncio.gather(
        up(shared, ALICE, "web"), up(shared, BOB, "web"), return_exceptions=True
    )
    assert sorted(type(result).__name__ for result in results) == ["Box", "Forbidden"]
    assert len(await shared.store.all_boxes()) == 1


async def test_each_owner_has_names_of_its_own_by_default(web: Web) -> None:
    assert {(await up(web, owner, "web")).owner for owner in (ALICE, BOB)} == {
        ALICE.owner,
        BOB.owner,
    }
