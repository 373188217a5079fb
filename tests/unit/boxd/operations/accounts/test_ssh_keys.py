"""SSH keys of an account: a new key proves itself, and a removed key never comes back."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from boxd.boxes.limits.account_keys import MOVED, REMOVED, AccountKeys
from boxd.errors import (
    BadName,
    BoxdError,
    Conflict,
    Forbidden,
    NotFound,
    QuotaExceeded,
    Unavailable,
)
from boxd.model.access.account_key import FIRST, AccountKey
from boxd.operations.accounts import joining
from boxd.operations.accounts.ssh_keys import CODE_LIVES, MAX_PENDING
from boxd.operations.accounts.tries import TRIES_PER_KEY, TRIES_PER_SOURCE, WINDOW_S
from boxd.principal import Principal, ProvedKey
from tests.harness.simulation.world import ALICE, BOB, SCOPED, World

if TYPE_CHECKING:
    from boxd.operations import Operations


def login(world: World, fingerprint: str, address: str = "") -> Principal:
    """Return the principal of a login with a key, as authentication creates it."""
    owner = world.account_keys.account_of(fingerprint)
    assert owner is not None, "the key opens no account"
    proved = ProvedKey(fingerprint, f"ssh-ed25519 {fingerprint}", address)
    return Principal(owner, None, "ssh_key", proved=proved)


async def code_for(ops: Operations, name: str = "phone", p: Principal = ALICE) -> str:
    """Return a code for a new key."""
    _, secret = await ops.ssh_keys.add_key(p, name)
    return secret.reveal()


async def link(world: World, fingerprint: str, name: str) -> Principal:
    """Link a key to the account of Alice, and return the principal of its next login."""
    code = await code_for(world.operations, name)
    await world.operations.ssh_keys.confirm_key(login(world, fingerprint), code)
    return login(world, fingerprint)


async def names(ops: Operations) -> list[str]:
    """Return the names of Alice's keys."""
    return [key.name for key in await ops.ssh_keys.list_keys(ALICE)]


async def test_an_account_begins_with_its_first_key(ops: Operations) -> None:
    assert await ops.ssh_keys.list_keys(ALICE) == [AccountKey(ALICE.owner, ALICE.owner, FIRST)]
    assert await ops.ssh_keys.list_keys(replace(ALICE, via="api_key")) != []


async def test_a_key_counts_only_after_its_proof(world: World, ops: Operations) -> None:
    await ops.boxes.up(ALICE, "web")
    expires, secret = await ops.ssh_keys.add_key(ALICE, "phone")
    assert expires == world.clock.now() + CODE_LIVES
    assert secret.reveal() not in repr(world.store.__dict__)
    assert await world.store.account_keys() == []
    assert login(world, "SHA256:phone").owner == "SHA256:phone"
    fresh = login(world, "SHA256:phone")
    key = await ops.ssh_keys.confirm_key(fresh, secret.reveal().lower().replace("-", " "))
    assert (key.owner, key.name, key.public_key) == (
        ALICE.owner,
        "phone",
        "ssh-ed25519 SHA256:phone",
    )
    p = login(world, "SHA256:phone")
    assert p.owner == ALICE.owner
    assert [view.name for view in await ops.boxes.list_boxes(p)] == ["web"]
    assert await names(ops) == [FIRST, "phone"]
    with pytest.raises(Forbidden, match="connect again"):
        ops.callers.check_admitted(fresh)
    ops.callers.check_admitted(p)


async def test_links_and_removals_survive_a_restart(world: World, ops: Operations) -> None:
    phone = await link(world, "SHA256:phone", "phone")
    await link(world, "SHA256:tablet", "tablet")
    await ops.ssh_keys.remove_key(phone, FIRST)
    await ops.ssh_keys.remove_key(phone, "SHA256:tablet")
    again = AccountKeys(world.store)
    await again.start()
    assert again.account_of("SHA256:phone") == ALICE.owner
    assert again.account_of(ALICE.owner) is None
    assert again.account_of("SHA256:tablet") is None
    assert again.account_of("SHA256:other") == "SHA256:other"


async def test_a_code_works_once(world: World, ops: Operations) -> None:
    code = await code_for(ops)
    await ops.ssh_keys.confirm_key(login(world, "SHA256:phone"), code)
    with pytest.raises(NotFound, match="has been used"):
        await ops.ssh_keys.confirm_key(login(world, "SHA256:tablet"), code)
    assert world.account_keys.account_of("SHA256:tablet") == "SHA256:tablet"


async def test_one_of_two_confirmations_at_once_counts(world: World, ops: Operations) -> None:
    code = await code_for(ops)
    people = [login(world, f"SHA256:{name}") for name in ("one", "two", "three")]
    confirmations = [ops.ssh_keys.confirm_key(p, code) for p in people]
    outcomes = await asyncio.gather(*confirmations, return_exceptions=True)
    assert sum(isinstance(outcome, AccountKey) for outcome in outcomes) == 1
    assert sum(isinstance(outcome, NotFound) for outcome in outcomes) == 2
    assert len(await names(ops)) == 2


async def test_one_key_cannot_join_two_accounts_at_once(world: World, ops: Operations) -> None:
    codes = [await code_for(ops), await code_for(ops, p=BOB)]
    phone = login(world, "SHA256:phone")
    confirmations = [ops.ssh_keys.confirm_key(phone, code) for code in codes]
    outcomes = await asyncio.gather(*confirmations, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [AccountKey, Forbidden]
    assert login(world, "SHA256:phone").owner == ALICE.owner


async def test_a_code_expires(world: World, ops: Operations) -> None:
    code = await code_for(ops)
    world.clock.turn(CODE_LIVES)
    with pytest.raises(NotFound, match="expired"):
        await ops.ssh_keys.confirm_key(login(world, "SHA256:phone"), code)


async def test_a_key_with_an_account_of_its_own_is_rejected(world: World, ops: Operations) -> None:
    code = await code_for(ops)
    await ops.boxes.up(BOB, "web")
    with pytest.raises(Conflict, match="account of its own"):
        await ops.ssh_keys.confirm_key(BOB, code)
    host = await code_for(ops, p=login(world, "SHA256:host"))
    await ops.ssh_keys.confirm_key(login(world, "SHA256:guest"), host)
    for fingerprint, text in (
        ("SHA256:host", "account of its own"),
        ("SHA256:guest", "belongs to another account"),
        (ALICE.owner, "opens that account already"),
    ):
        with pytest.raises(Conflict, match=text):
            await ops.ssh_keys.confirm_key(login(world, fingerprint), code)
    await ops.ssh_keys.confirm_key(login(world, "SHA256:phone"), code)  # the code is still valid


async def test_names_and_numbers_of_keys_are_limited(
    world: World, ops: Operations, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("", "a b", "x" * 65, FIRST):
        with pytest.raises(BadName):
            await ops.ssh_keys.add_key(ALICE, name)
    code = await code_for(ops)
    await link(world, "SHA256:phone", "phone")
    with pytest.raises(Conflict, match="named phone"):
        await ops.ssh_keys.add_key(ALICE, "phone")
    with pytest.raises(Conflict, match="named phone"):
        await ops.ssh_keys.confirm_key(login(world, "SHA256:tablet"), code)
    monkeypatch.setattr(joining, "MAX_KEYS", 2)
    with pytest.raises(Conflict, match="at most 2 keys"):
        await ops.ssh_keys.add_key(ALICE, "third")
    monkeypatch.setattr(joining, "MAX_KEYS", 3)
    monkeypatch.setattr(joining, "MAX_KEYS_EVER", 2)
    with pytest.raises(Conflict, match="has had 2 keys"):
        await ops.ssh_keys.add_key(ALICE, "third")


async def test_an_account_has_a_few_codes_at_once(world: World, ops: Operations) -> None:
    codes = [await code_for(ops, f"key{number}") for number in range(MAX_PENDING + 1)]
    with pytest.raises(NotFound):
        await ops.ssh_keys.confirm_key(login(world, "SHA256:phone"), codes[0])
    await ops.ssh_keys.confirm_key(login(world, "SHA256:phone"), codes[1])


async def test_a_removed_key_opens_nothing(world: World, ops: Operations) -> None:
    ended: list[tuple[str, str]] = []
    phone = await link(world, "SHA256:phone", "phone")
    world.account_keys.on_change(lambda fingerprint, why, _: ended.append((fingerprint, why)))
    waiting = await code_for(ops, "tablet", p=phone)
    removed = await ops.ssh_keys.remove_key(ALICE, "phone")
    assert removed.fingerprint == "SHA256:phone"
    assert ended == [("SHA256:phone", REMOVED)]
    assert world.account_keys.account_of("SHA256:phone") is None
    for call in (
        ops.ssh_keys.add_key(phone, "another"),
        ops.ssh_keys.remove_key(phone, FIRST),
        ops.recovery.create_codes(phone),
    ):
        with pytest.raises(Forbidden, match="was removed"):
            await call
    with pytest.raises(Forbidden, match="was removed"):
        ops.visits.visit(phone, "mcp")
    with pytest.raises(NotFound):  # a code that a thief asked for ends with the thief's key
        await ops.ssh_keys.confirm_key(login(world, "SHA256:tablet"), waiting)
    assert await names(ops) == [FIRST]


async def test_a_removed_first_key_leaves_the_account(world: World, ops: Operations) -> None:
    await ops.boxes.up(ALICE, "web")
    _, api_key = await ops.keys.create_key(ALICE, "ci", scope=None, ttl=None)
    phone = await link(world, "SHA256:phone", "phone")
    await ops.ssh_keys.remove_key(phone, ALICE.owner)
    assert world.account_keys.account_of(ALICE.owner) is None
    with pytest.raises(Forbidden, match="was removed"):
        ops.callers.check_admitted(ALICE)
    assert phone.owner == ALICE.owner
    assert [view.name for view in await ops.boxes.list_boxes(phone)] == ["web"]
    assert (await ops.keys.principal_of_key(api_key.reveal())).owner == ALICE.owner
    assert [key.name for key in await ops.ssh_keys.list_keys(phone)] == ["phone"]


async def test_a_removed_key_cannot_join_again(world: World, ops: Operations) -> None:
    phone = await link(world, "SHA256:phone", "phone")
    await ops.ssh_keys.remove_key(ALICE, "phone")
    code = await code_for(ops, "back")
    alone = replace(phone, owner=phone.fingerprint)
    for p in (phone, alone):
        with pytest.raises(Forbidden, match="was removed"):
            await ops.ssh_keys.confirm_key(p, code)


async def test_the_only_key_and_the_key_in_use_stay(world: World, ops: Operations) -> None:
    with pytest.raises(Conflict, match="only key"):
        await ops.ssh_keys.remove_key(ALICE, FIRST)
    with pytest.raises(Conflict, match="only key"):
        await ops.ssh_keys.remove_key(replace(ALICE, via="api_key", key_id="k"), FIRST)
    phone = await link(world, "SHA256:phone", "phone")
    for p, name in ((ALICE, FIRST), (phone, "phone")):
        with pytest.raises(Conflict, match="connected with this key"):
            await ops.ssh_keys.remove_key(p, name)
    with pytest.raises(NotFound, match="no SSH key 'absent'"):
        await ops.ssh_keys.remove_key(ALICE, "absent")
    with pytest.raises(NotFound):
        await ops.ssh_keys.remove_key(BOB, "phone")


async def test_two_keys_cannot_remove_each_other(world: World, ops: Operations) -> None:
    phone = await link(world, "SHA256:phone", "phone")
    removals = [ops.ssh_keys.remove_key(ALICE, "phone"), ops.ssh_keys.remove_key(phone, FIRST)]
    outcomes = await asyncio.gather(*removals, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [AccountKey, Forbidden]
    assert await names(ops) == [FIRST]


async def test_only_ssh_changes_ways_in(ops: Operations) -> None:
    api_key = replace(ALICE, via="api_key", key_id="k")
    for call in (
        ops.ssh_keys.add_key(api_key, "phone"),
        ops.ssh_keys.confirm_key(api_key, "x"),
        ops.ssh_keys.list_keys(SCOPED),
        ops.ssh_keys.remove_key(SCOPED, FIRST),
        ops.recovery.create_codes(api_key),
        ops.recovery.count_codes(api_key),
        ops.recovery.use_code(api_key, "x"),
        ops.accounts.set_name(SCOPED, "x"),
    ):
        with pytest.raises(Forbidden):
            await call


async def test_wrong_codes_are_limited_for_each_key(world: World, ops: Operations) -> None:
    code = await code_for(ops)
    phone = login(world, "SHA256:phone")
    for wrong in ("", "x", "A" * 1000, "\udc80", code + "A")[:TRIES_PER_KEY]:
        with pytest.raises(NotFound):
            await ops.ssh_keys.confirm_key(phone, wrong)
    for call in (ops.ssh_keys.confirm_key(phone, code), ops.recovery.use_code(phone, code)):
        with pytest.raises(QuotaExceeded, match="too many wrong codes"):
            await call
    await ops.ssh_keys.confirm_key(login(world, "SHA256:tablet"), code)
    world.clock.turn(timedelta(seconds=WINDOW_S))
    await ops.ssh_keys.confirm_key(phone, await code_for(ops, "second"))


async def test_wrong_codes_are_limited_for_each_address(world: World, ops: Operations) -> None:
    for number in range(TRIES_PER_SOURCE):
        with pytest.raises(NotFound):
            await ops.recovery.use_code(login(world, f"SHA256:{number}", "203.0.113.9"), "x")
    with pytest.raises(QuotaExceeded):
        await ops.recovery.use_code(login(world, "SHA256:new", "203.0.113.9"), "x")
    for address in ("203.0.113.10", "127.0.0.1"):
        with pytest.raises(NotFound):
            await ops.recovery.use_code(login(world, "SHA256:new", address), "x")


async def test_a_blocked_account_gets_no_keys(world: World, ops: Operations) -> None:
    code = await code_for(ops)
    await link(world, "SHA256:tablet", "tablet")
    await world.access_policy.block(ALICE.owner)
    with pytest.raises(Forbidden, match="blocked"):
        await ops.ssh_keys.confirm_key(login(world, "SHA256:phone"), code)
    with pytest.raises(Forbidden, match="blocked"):
        ops.callers.check_admitted(login(world, "SHA256:tablet"))
    await world.access_policy.unblock(ALICE.owner)
    await world.access_policy.block("SHA256:tablet")  # one key of the account
    ops.callers.check_admitted(ALICE)
    with pytest.raises(Forbidden, match="blocked"):
        ops.callers.check_admitted(login(world, "SHA256:tablet"))


async def test_a_change_that_is_not_recorded_does_not_count(
    world: World, ops: Operations, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = await code_for(ops)

    async def fail(*_: object) -> None:
        raise Unavailable("out")

    phone = login(world, "SHA256:phone")
    with monkeypatch.context() as patch:
        patch.setattr(type(world.store), "add_account_key", fail)
        with pytest.raises(Unavailable):
            await ops.ssh_keys.confirm_key(phone, code)
    assert world.account_keys.account_of("SHA256:phone") == "SHA256:phone"
    await ops.ssh_keys.confirm_key(phone, code)
    with monkeypatch.context() as patch:
        patch.setattr(type(world.store), "remove_account_key", fail)
        with pytest.raises(Unavailable):
            await ops.ssh_keys.remove_key(ALICE, "phone")
    assert world.account_keys.account_of("SHA256:phone") == ALICE.owner


async def test_a_cancelled_change_runs_to_its_end(
    world: World, ops: Operations, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client may disconnect while the database works: row and memory still agree."""
    await link(world, "SHA256:phone", "phone")
    remove, started, release = world.store.remove_account_key, asyncio.Event(), asyncio.Event()

    async def slow(_: object, *args: object) -> None:
        started.set()
        await release.wait()
        await remove(*args)  # type: ignore[arg-type] # the arguments of the call

    monkeypatch.setattr(type(world.store), "remove_account_key", slow)
    removal = asyncio.ensure_future(ops.ssh_keys.remove_key(ALICE, "phone"))
    await started.wait()
    removal.cancel()
    release.set()
    with pytest.raises(asyncio.CancelledError):
        await removal
    assert world.account_keys.account_of("SHA256:phone") is None


async def test_the_connection_of_the_proof_stays_for_its_answer(
    world: World, ops: Operations
) -> None:
    ended: list[tuple[str, str, Principal | None]] = []
    world.account_keys.on_change(lambda *change: ended.append(change))
    code, phone = await code_for(ops), login(world, "SHA256:phone")
    await ops.ssh_keys.confirm_key(phone, code)
    assert ended == [("SHA256:phone", MOVED, phone)]


async def test_quotas_count_for_the_account(world: World, ops: Operations) -> None:
    phone = await link(world, "SHA256:phone", "phone")
    world.tiers[ALICE.owner] = replace(world.tier, boxes=1)
    await ops.boxes.up(ALICE, "web")
    with pytest.raises(QuotaExceeded):
        await ops.boxes.up(phone, "other")


async def test_uses_of_linked_keys_are_recorded(world: World, ops: Operations) -> None:
    phone = await link(world, "SHA256:phone", "phone")
    ops.callers.seen(phone)
    ops.callers.seen(login(world, "SHA256:stranger"))
    await ops.close()
    keys = {key.name: key.last_used for key in await ops.ssh_keys.list_keys(ALICE)}
    assert keys == {FIRST: None, "phone": world.clock.now()}


async def test_whoami_names_the_account_and_the_key(world: World, ops: Operations) -> None:
    phone = await link(world, "SHA256:phone", "phone")
    assert await ops.accounts.set_name(phone, " Alice ") == "Alice"
    who = await ops.stats.whoami(phone)
    assert (who.fingerprint, who.key, who.name) == (ALICE.owner, "SHA256:phone", "Alice")
    who = await ops.stats.whoami(replace(ALICE, via="api_key"))
    assert (who.fingerprint, who.key, who.name) == (ALICE.owner, None, "Alice")
    for bad in ("x" * 65, "a\nb", "a\x1b[2J", "\u202e"):
        with pytest.raises(BoxdError, match="is not valid"):
            await ops.accounts.set_name(ALICE, bad)
    assert await ops.accounts.set_name(ALICE, "") is None
    assert (await ops.stats.whoami(ALICE)).name is None
