"""Recovery codes: a new key joins the account, once for each code."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from boxd.errors import Conflict, NotFound, Unavailable
from boxd.model.access.account_key import FIRST, AccountKey
from boxd.operations.accounts.recovery import CODES
from boxd.principal import Principal, ProvedKey
from tests.harness.simulation.world import ALICE, BOB, World

if TYPE_CHECKING:
    from boxd.operations import Operations


def login(fingerprint: str) -> Principal:
    """Return the principal of a login with a key that is not linked."""
    return Principal(fingerprint, None, "ssh_key", proved=ProvedKey(fingerprint, "ssh-ed25519 A"))


async def codes_of(ops: Operations, p: Principal = ALICE) -> list[str]:
    """Create codes for an account."""
    return [code.reveal() for code in await ops.recovery.create_codes(p)]


async def test_a_code_links_a_new_key_and_is_used_up(world: World, ops: Operations) -> None:
    codes = await codes_of(ops)
    assert len(set(codes)) == CODES == 8
    assert all(len(code.replace("-", "")) == 32 for code in codes), "160 bits"
    assert codes[0] not in repr(world.store.__dict__)
    key = await ops.recovery.use_code(login("SHA256:new"), codes[0])
    assert (key.owner, key.name) == (ALICE.owner, "recovered")
    assert world.account_keys.account_of("SHA256:new") == ALICE.owner
    assert await ops.recovery.count_codes(ALICE) == CODES - 1
    with pytest.raises(NotFound, match="has been used"):
        await ops.recovery.use_code(login("SHA256:other"), codes[0])
    key = await ops.recovery.use_code(login("SHA256:other"), codes[1])
    assert key.name == "recovered-2"
    keys = await ops.ssh_keys.list_keys(ALICE)
    assert [key.name for key in keys] == [FIRST, "recovered-2", "recovered"] or [
        key.name for key in keys
    ] == [FIRST, "recovered", "recovered-2"]


async def test_the_audit_records_the_use(world: World, ops: Operations) -> None:
    codes = await codes_of(ops)
    with pytest.raises(NotFound):
        await ops.recovery.use_code(login("SHA256:new"), "wrong")
    assert await world.store.audits(10) == []
    await ops.recovery.use_code(login("SHA256:new"), codes[0])
    (entry,) = await world.store.audits(10)
    assert (entry.admin, entry.line, entry.status, entry.owners) == (
        "SHA256:new",
        "cli: recovery use",
        0,
        (ALICE.owner,),
    )


async def test_new_codes_replace_older_ones(ops: Operations) -> None:
    older, others = await codes_of(ops), await codes_of(ops, BOB)
    newer = await codes_of(ops)
    assert await ops.recovery.count_codes(ALICE) == CODES
    with pytest.raises(NotFound):
        await ops.recovery.use_code(login("SHA256:new"), older[0])
    key = await ops.recovery.use_code(login("SHA256:new"), newer[0])
    assert key.owner == ALICE.owner
    assert (await ops.recovery.use_code(login("SHA256:bobs"), others[0])).owner == BOB.owner


async def test_a_rejected_key_uses_no_code(world: World, ops: Operations) -> None:
    codes = await codes_of(ops)
    await ops.boxes.up(BOB, "web")
    for p, text in ((BOB, "account of its own"), (ALICE, "opens that account already")):
        with pytest.raises(Conflict, match=text):
            await ops.recovery.use_code(p, codes[0])
    assert await ops.recovery.count_codes(ALICE) == CODES
    assert world.account_keys.account_of(BOB.owner) == BOB.owner


async def test_one_of_two_uses_at_once_counts(world: World, ops: Operations) -> None:
    codes = await codes_of(ops)
    uses = [ops.recovery.use_code(login(f"SHA256:{name}"), codes[0]) for name in ("a", "b")]
    outcomes = await asyncio.gather(*uses, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [AccountKey, NotFound]
    assert world.account_keys.account_of("SHA256:b") == "SHA256:b"


async def test_nothing_happens_without_an_audit(
    world: World, ops: Operations, monkeypatch: pytest.MonkeyPatch
) -> None:
    codes = await codes_of(ops)

    async def fail(*_: object) -> None:
        raise Unavailable("out")

    with monkeypatch.context() as patch:
        patch.setattr(type(world.store), "add_audit", fail)
        with pytest.raises(Unavailable):
            await ops.recovery.use_code(login("SHA256:new"), codes[0])
    assert world.account_keys.account_of("SHA256:new") == "SHA256:new"
    with monkeypatch.context() as patch:
        patch.setattr(type(world.store), "add_account_key", fail)
        with pytest.raises(Unavailable):
            await ops.recovery.use_code(login("SHA256:new"), codes[0])
    (entry,) = await world.store.audits(10)
    assert entry.status == 1
    assert await ops.recovery.count_codes(ALICE) == CODES
