"""Secrets: where they are kept, who gets them, and that nobody is shown them."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import pytest

from boxd.boxes.state.requests import BoxAccess
from boxd.errors import (
    BadRequest,
    BoxdError,
    Forbidden,
    NotFound,
    QuotaExceeded,
    TooLarge,
    Unavailable,
)
from boxd.names.variable import MAX_VALUE
from boxd.operations import secrets
from boxd.operations.secrets import MAX_SEALED, MAX_SECRETS
from boxd.principal import Principal
from boxd.secret import Secret
from tests.harness.logs import provoked
from tests.harness.simulation.turns import wait_turns
from tests.harness.simulation.world import ALICE, BOB, SCOPED

if TYPE_CHECKING:
    from boxd.operations import Operations
    from tests.harness.simulation.world import World

CANARY = "canary-c0ffee-secret"


async def given(ops: Operations, p: Principal, target: str) -> dict[str, str]:
    """The environment of who attaches to a box."""
    kind: Literal["spec", "reference"] = "reference" if p.via == "share" else "spec"
    async with ops.boxes.attach(p, BoxAccess(target, kind=kind, why="command")) as attachment:
        assert CANARY not in repr(attachment)
        return dict(attachment.env)


async def test_a_secret_of_the_workspace_wins_over_one_of_the_account(ops: Operations) -> None:
    await ops.secrets.set_secret(ALICE, "A", Secret("account"), tier="account")
    await ops.secrets.set_secret(ALICE, "B", Secret("account"), tier="account")
    await ops.secrets.set_secret(ALICE, "B", Secret("ws1"), tier="workspace", ws="ws1")
    await ops.secrets.set_secret(ALICE, "B", Secret("default"), tier="workspace")
    await ops.secrets.set_secret(ALICE, "C", Secret("ws2"), tier="workspace", ws="ws2")
    assert await given(ops, ALICE, "ws1/web") == {"A": "account", "B": "ws1"}
    assert await given(ops, ALICE, "web") == {"A": "account", "B": "default"}
    assert await given(ops, ALICE, "ws3/web") == {"A": "account", "B": "account"}
    assert await given(ops, BOB, "web") == {}


async def test_a_confined_key_has_the_secrets_of_its_workspace_alone(ops: Operations) -> None:
    await ops.secrets.set_secret(ALICE, "A", Secret("account"), tier="account")
    await ops.secrets.set_secret(ALICE, "B", Secret("other"), tier="workspace", ws="ws2")
    await ops.workspaces.create_workspace(ALICE, "ws1")
    secret, created = await ops.secrets.set_secret(SCOPED, "B", Secret("mine"), tier="workspace")
    assert (secret.workspace, created) == ("ws1", True)
    assert await given(ops, SCOPED, "web") == {"B": "mine"}
    assert [one.workspace for one in await ops.secrets.list_secrets(SCOPED)] == ["ws1"]
    with pytest.raises(Forbidden, match="ws1"):
        await ops.secrets.set_secret(SCOPED, "A", Secret("x"), tier="account")
    with pytest.raises(Forbidden, match="ws1"):
        await ops.secrets.remove_secret(SCOPED, "B", tier="workspace", ws="ws2")


async def test_shares_and_confidential_boxes_get_none(world: World) -> None:
    ops = world.operations
    await ops.secrets.set_secret(ALICE, "A", Secret(CANARY), tier="account")
    box = await ops.directory.resolve(ALICE, (await ops.boxes.up(ALICE, "web")).id)
    share = Principal(ALICE.owner, None, "share", "s1", box=box.id)
    assert await given(ops, ALICE, "web") == {"A": CANARY}
    assert await given(ops, share, box.id) == {}
    assert await ops.boxes._environment(ALICE, replace(box, confidential=True)) == {}


async def test_what_is_stored_is_sealed_and_bound_to_its_place(world: World) -> None:
    ops, store = world.operations, world.store
    await ops.secrets.set_secret(ALICE, "A", Secret(CANARY), tier="account")
    (row,) = await store.secrets(ALICE.owner)
    assert CANARY.encode() not in row.sealed
    assert CANARY not in repr(row)
    for moved in (
        replace(row, name="B"),
        replace(row, tier="workspace"),
        replace(row, owner=BOB.owner),
    ):
        await store.put_secret(moved)
        with provoked("boxd.operations.shared.vault"), pytest.raises(Unavailable) as raised:
            await given(ops, BOB if moved.owner == BOB.owner else ALICE, "web")
        assert str(raised.value).endswith(f"or: secret rm {moved.name}")
        assert "master.key" not in str(raised.value)
        assert CANARY not in str(raised.value)
        await store.remove_secret(moved.owner, moved.tier, moved.workspace, moved.name)


async def test_setting_again_replaces_and_removing_forgets(ops: Operations) -> None:
    assert (await ops.secrets.set_secret(ALICE, "A", Secret("1"), tier="account"))[1]
    assert not (await ops.secrets.set_secret(ALICE, "A", Secret("2"), tier="account"))[1]
    assert await given(ops, ALICE, "web") == {"A": "2"}
    with pytest.raises(NotFound):
        await ops.secrets.remove_secret(ALICE, "A", tier="workspace")
    with pytest.raises(NotFound):
        await ops.secrets.remove_secret(BOB, "A", tier="account")
    await ops.secrets.remove_secret(ALICE, "A", tier="account")
    assert await given(ops, ALICE, "web") == {}


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("", "x", BadRequest),
        ("1A", "x", BadRequest),
        ("A-B", "x", BadRequest),
        ("A\x1b", "x", BadRequest),
        ("A" * 65, "x", BadRequest),
        ("LD_PRELOAD", "x", BadRequest),
        ("ssh_auth_sock", "x", BadRequest),
        ("BOX_ID", "x", BadRequest),
        ("PATH", "x", BadRequest),
        ("HOME", "x", BadRequest),
        ("BASH_ENV", "x", BadRequest),
        ("ENV", "x", BadRequest),
        ("IFS", "x", BadRequest),
        ("SHELL", "x", BadRequest),
        ("PROMPT_COMMAND", "x", BadRequest),
        ("TMOUT", "x", BadRequest),
        ("PYTHONHOME", "x", BadRequest),
        ("A", "", BadRequest),
        ("A", "x\0y", BadRequest),
        ("A", "\ud800", BadRequest),
        ("A", "x" * (MAX_VALUE + 1), TooLarge),
        ("A", "ä" * (MAX_VALUE // 2 + 1), TooLarge),
    ],
)
async def test_what_no_variable_can_be_is_refused(
    ops: Operations, name: str, value: str, error: type[BoxdError]
) -> None:
    with pytest.raises(error) as raised:
        await ops.secrets.set_secret(ALICE, name, Secret(value), tier="account")
    assert len(str(raised.value)) < 300
    assert not await ops.secrets.list_secrets(ALICE)


async def test_those_that_are_set_at_once_are_counted_one_by_one(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(secrets, "MAX_SECRETS", 3)
    wait_turns(monkeypatch, world.store, "secrets", "put_secret")
    keep = world.operations.secrets.set_secret
    kept = (keep(ALICE, f"N{number}", Secret("x"), tier="account") for number in range(9))
    await asyncio.gather(*kept, return_exceptions=True)
    assert len(await world.store.secrets(ALICE.owner)) == 3


async def test_their_number_and_sum_are_limited(ops: Operations) -> None:
    big = Secret("x" * MAX_VALUE)
    for number in range(MAX_SEALED // MAX_VALUE - 1):
        await ops.secrets.set_secret(ALICE, f"BIG{number}", big, tier="account")
    with pytest.raises(QuotaExceeded, match="256 KiB"):
        await ops.secrets.set_secret(ALICE, "ONE_MORE", big, tier="account")
    await ops.secrets.set_secret(ALICE, "BIG0", big, tier="account")
    for number in range(MAX_SECRETS):
        await ops.secrets.set_secret(BOB, f"N{number}", Secret("x"), tier="account")
    with pytest.raises(QuotaExceeded, match=f"{MAX_SECRETS} secrets"):
        await ops.secrets.set_secret(BOB, "ONE_MORE", Secret("x"), tier="account")
    await ops.secrets.set_secret(BOB, "N0", Secret("y"), tier="account")
