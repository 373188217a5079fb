"""One suite for every ControlStore: SSH keys, recovery codes and names of accounts."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from boxd.errors import BoxdError, Conflict, NotFound
from boxd.model.access.account_key import FIRST, AccountKey
from boxd.model.account import Account
from boxd.model.canvas import Canvas
from boxd.model.profile import Profile
from boxd.model.secret import Agent, StoredSecret
from boxd.secret import digest
from tests.harness.control_store.rows import (
    DAY,
    NOW,
    OTHER,
    OWNER,
    make_ask,
    make_box,
    make_key,
    make_volume,
)

if TYPE_CHECKING:
    from boxd.store.interface import ControlStore

SECOND = timedelta(seconds=1)
FIRST_KEY = AccountKey.first_of(OWNER)
PHONE = AccountKey("SHA256:phone", OWNER, "phone", "ssh-ed25519 AAAA", NOW)


@pytest.fixture
def store(control_store: ControlStore) -> ControlStore:
    """A fresh store of each kind."""
    return control_store


async def test_a_linked_key_and_the_first_key_are_listed(store: ControlStore) -> None:
    assert await store.account_keys() == []
    await store.add_account_key(PHONE, FIRST_KEY)
    await store.add_account_key(PHONE, FIRST_KEY)
    assert await store.account_keys() == [FIRST_KEY, PHONE]
    assert await store.account_keys(OWNER) == [FIRST_KEY, PHONE]
    assert await store.account_keys(OTHER) == []
    assert FIRST_KEY.name == FIRST


async def test_a_key_has_one_account_and_a_name_of_its_own(store: ControlStore) -> None:
    await store.add_account_key(PHONE, FIRST_KEY)
    foreign = replace(PHONE, owner=OTHER)
    with pytest.raises(Conflict, match="belongs to an account"):
        await store.add_account_key(foreign, AccountKey.first_of(OTHER))
    same_name = replace(PHONE, fingerprint="SHA256:tablet")
    with pytest.raises(Conflict, match="another key named phone"):
        await store.add_account_key(same_name, FIRST_KEY)
    assert await store.account_keys() == [FIRST_KEY, PHONE]
    await store.remove_account_key(OWNER, PHONE.fingerprint, NOW + SECOND)
    await store.add_account_key(same_name, FIRST_KEY)  # the name is free again
    with pytest.raises(Conflict, match="belongs to an account"):
        await store.add_account_key(replace(PHONE, added=NOW + DAY), FIRST_KEY)


async def test_a_removed_key_keeps_its_row(store: ControlStore) -> None:
    await store.add_account_key(PHONE, FIRST_KEY)
    await store.remove_account_key(OWNER, OWNER, NOW + SECOND)
    await store.remove_account_key(OWNER, OWNER, NOW + DAY)
    assert await store.account_keys() == [replace(FIRST_KEY, removed=NOW + SECOND), PHONE]
    with pytest.raises(Conflict, match="only key"):
        await store.remove_account_key(OWNER, PHONE.fingerprint, NOW)
    with pytest.raises(NotFound):
        await store.remove_account_key(OWNER, "SHA256:absent", NOW)
    with pytest.raises(NotFound):
        await store.remove_account_key(OTHER, PHONE.fingerprint, NOW)


async def test_last_use_of_a_key_never_goes_back(store: ControlStore) -> None:
    await store.add_account_key(PHONE, FIRST_KEY)
    await store.touch_account_key(PHONE.fingerprint, NOW + SECOND)
    await store.touch_account_key(PHONE.fingerprint, NOW)
    await store.touch_account_key("SHA256:absent", NOW)
    assert await store.account_keys() == [FIRST_KEY, replace(PHONE, last_used=NOW + SECOND)]


async def test_recovery_codes_replace_older_ones_and_link_one_key(store: ControlStore) -> None:
    await store.put_recovery_codes(OWNER, [digest("old")], NOW)
    await store.put_recovery_codes(OTHER, [digest("other")], NOW)
    codes = [digest("a"), digest("b")]
    await store.put_recovery_codes(OWNER, codes, NOW)
    await store.put_recovery_codes(OWNER, codes, NOW)
    assert (await store.recovery_codes(OWNER), await store.recovery_codes(OTHER)) == (2, 1)
    assert await store.find_recovery_code(digest("old")) is None
    assert await store.find_recovery_code(digest("a")) == OWNER
    for code in (digest("old"), digest("other")):
        with pytest.raises(NotFound):
            await store.add_account_key(PHONE, FIRST_KEY, code)
    await store.add_account_key(PHONE, FIRST_KEY, digest("a"))
    await store.add_account_key(PHONE, FIRST_KEY, digest("a"))
    assert await store.recovery_codes(OWNER) == 1
    tablet = AccountKey("SHA256:tablet", OWNER, "tablet", "", NOW + SECOND)
    with pytest.raises(NotFound):
        await store.add_account_key(tablet, FIRST_KEY, digest("a"))
    assert await store.account_keys() == [FIRST_KEY, PHONE]


async def test_a_rejected_key_uses_no_code(store: ControlStore) -> None:
    await store.put_recovery_codes(OWNER, [digest("a")], NOW)
    await store.add_box(make_box(owner=PHONE.fingerprint))
    with pytest.raises(Conflict, match="owns objects"):
        await store.add_account_key(PHONE, FIRST_KEY, digest("a"))
    tablet = AccountKey("SHA256:tablet", OWNER, "tablet", "", NOW)
    await store.add_account_key(tablet, FIRST_KEY)
    with pytest.raises(Conflict, match="another key named tablet"):
        await store.add_account_key(
            replace(tablet, fingerprint="SHA256:new"), FIRST_KEY, digest("a")
        )
    assert await store.recovery_codes(OWNER) == 1


async def test_two_keys_cannot_use_one_code(store: ControlStore) -> None:
    await store.put_recovery_codes(OWNER, [digest("a")], NOW)
    keys = [AccountKey(f"SHA256:{name}", OWNER, name, "", NOW) for name in ("x", "y", "z")]
    links = [store.add_account_key(key, FIRST_KEY, digest("a")) for key in keys]
    outcomes = await asyncio.gather(*links, return_exceptions=True)
    assert sum(outcome is None for outcome in outcomes) == 1
    assert all(outcome is None or isinstance(outcome, BoxdError) for outcome in outcomes)
    assert len(await store.account_keys()) == 2


async def test_each_kind_of_object_counts(store: ControlStore) -> None:
    assert not await store.owns_anything(OWNER)
    await store.touch_account(OWNER, NOW)
    await store.set_tier(OWNER, "large")
    assert not await store.owns_anything(OWNER)
    owners = [f"SHA256:{number}" for number in range(11)]
    await store.add_box(make_box(owner=owners[0]))
    await store.add_key(make_key(owner=owners[1]), digest("key"))
    await store.add_workspace(owners[2], "ws", NOW)
    await store.put_profile(owners[3], Profile("py", "debian"))
    await store.add_volume(replace(make_volume(), owner=owners[4]))
    await store.put_secret(StoredSecret(owners[5], "account", None, "A", b"x", NOW))
    await store.put_agent(Agent(owners[6], "do", "T", "text", b"x", NOW))
    await store.add_ask(replace(make_ask(), owner=owners[7]))
    canvas = Canvas(owners[8], None, "plan", "", "text/html", 1, 1, NOW, None)
    await store.put_canvas(canvas, "x")
    await store.put_recovery_codes(owners[9], [digest("a")], NOW)
    await store.add_account_key(PHONE, AccountKey.first_of(owners[10]))
    for owner in owners[:10]:
        assert await store.owns_anything(owner), owner


async def test_an_account_has_a_name(store: ControlStore) -> None:
    assert await store.account(OWNER) == Account(OWNER)
    await store.set_account_name(OWNER, "Alice")
    await store.set_tier(OWNER, "large")
    assert await store.account(OWNER) == Account(OWNER, "large", name="Alice")
    assert await store.accounts() == [Account(OWNER, "large", name="Alice")]
    await store.set_account_name(OWNER, None)
    assert (await store.account(OWNER)).name is None
