"""One suite for every ControlStore: people and what they leave."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from boxd.errors import Conflict, NotFound
from boxd.model.access.proxy import ProxySession
from boxd.model.access.share import Share
from boxd.model.account import Account, Audit
from boxd.model.secret import Agent, StoredSecret
from boxd.model.workspace import Workspace
from boxd.secret import digest, random_hex
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
    from boxd.model.access.key import ApiKey
    from boxd.model.box import Box
    from boxd.store.interface import ControlStore

SECOND = timedelta(seconds=1)


@pytest.fixture
def store(control_store: ControlStore) -> ControlStore:
    """A fresh store of each kind."""
    return control_store


def make_share(box: Box) -> Share:
    """A share that was never used."""
    return Share(random_hex(16), box.owner, box.id, NOW, NOW + DAY, None)


async def test_share_is_found_by_its_digest(store: ControlStore) -> None:
    box, other = make_box(), make_box(owner=OTHER)
    await store.add_box(box)
    await store.add_box(other)
    first, second = make_share(box), replace(make_share(box), created=NOW + SECOND, expires=None)
    foreign = make_share(other)
    for share, token in ((second, "b"), (first, "a"), (first, "a"), (foreign, "c")):
        await store.add_share(share, digest(token))
    assert await store.find_share(digest("a")) == first
    assert await store.find_share(digest("d")) is None
    assert await store.shares(OWNER) == [first, second]
    assert await store.shares(OTHER) == [foreign]
    await store.remove_share(first.id)
    await store.remove_share(first.id)
    assert await store.find_share(digest("a")) is None
    assert await store.shares(OWNER) == [second]


async def test_shares_go_with_their_box_and_need_one(store: ControlStore) -> None:
    box, other = make_box(), make_box("db")
    for one in (box, other):
        await store.add_box(one)
        await store.add_share(make_share(one), digest(one.name))
    await store.remove_box(box.id)
    assert await store.find_share(digest("web")) is None
    assert [share.box_id for share in await store.shares(OWNER)] == [other.id]
    with pytest.raises(NotFound, match="no such box"):
        await store.add_share(make_share(box), digest("late"))


async def test_last_use_of_a_share_never_goes_back(store: ControlStore) -> None:
    box = make_box()
    share = make_share(box)
    await store.add_box(box)
    await store.add_share(share, digest("a"))
    await store.touch_share(share.id, NOW + 2 * SECOND)
    await store.touch_share(share.id, NOW + SECOND)
    await store.touch_share("f" * 32, NOW)
    assert await store.shares(OWNER) == [replace(share, last_used=NOW + 2 * SECOND)]


async def test_accounts_keep_each_of_their_facts(store: ControlStore) -> None:
    assert await store.accounts() == []
    await store.set_tier(OTHER, "large")
    await store.touch_account(OWNER, NOW + SECOND)
    await store.touch_account(OWNER, NOW)
    await store.set_blocked(OWNER, NOW)
    await store.set_tier(OWNER, "small")
    assert await store.accounts() == [
        Account(OWNER, "small", NOW, NOW + SECOND),
        Account(OTHER, "large"),
    ]
    await store.set_blocked(OWNER, None)
    await store.set_tier(OWNER, None)
    await store.touch_account(OTHER, NOW)
    assert await store.accounts() == [
        Account(OWNER, None, None, NOW + SECOND),
        Account(OTHER, "large", None, NOW),
    ]


async def test_audit_tells_the_newest_first_and_how_each_ended(store: ControlStore) -> None:
    entries = [
        Audit(random_hex(16), NOW + number * SECOND, "SHA256:admin", f"rm {number}")
        for number in range(3)
    ]
    for entry in (*entries, entries[0]):
        await store.add_audit(entry)
    assert await store.audits(10) == entries[::-1]
    assert await store.audits(2) == [entries[2], entries[1]]
    await store.finish_audit(entries[0].id, 0, [OWNER])
    await store.finish_audit(entries[1].id, 2)
    await store.finish_audit("f" * 32, 0)
    ended = [
        replace(entries[0], status=0, owners=(OWNER,)),
        replace(entries[1], status=2),
        entries[2],
    ]
    assert await store.audits(10) == ended[::-1]
    assert await store.audits(10, OWNER) == [ended[0]]
    assert await store.audits(10, OTHER) == []
    await store.finish_audit(entries[2].id, 0, [OWNER, OTHER])
    several = replace(entries[2], status=0, owners=(OWNER, OTHER))
    assert await store.audits(10, OWNER) == [several, ended[0]]
    assert await store.audits(10, OTHER) == [several]


async def test_workspaces_have_a_profile_and_go(store: ControlStore) -> None:
    for name, owner in (("b", OWNER), ("a", OWNER), ("a", OTHER)):
        await store.add_workspace(owner, name, NOW)
    await store.set_workspace_profile(OWNER, "a", "lab")
    await store.set_workspace_profile(OWNER, "c", "lab")
    await store.add_workspace(OWNER, "a", NOW + DAY)
    assert await store.list_workspaces(OWNER) == [
        Workspace(OWNER, "a", NOW, "lab"),
        Workspace(OWNER, "b", NOW),
    ]
    assert await store.list_workspaces(OTHER) == [Workspace(OTHER, "a", NOW)]
    await store.set_workspace_profile(OWNER, "a", None)
    await store.remove_workspace(OWNER, "b")
    await store.remove_workspace(OWNER, "b")
    assert await store.list_workspaces(OWNER) == [Workspace(OWNER, "a", NOW)]


async def test_secrets_are_named_by_tier_and_workspace(store: ControlStore) -> None:
    account = StoredSecret(OWNER, "account", None, "TOKEN", b"\x00one", NOW)
    default = replace(account, tier="workspace", sealed=b"two")
    named = replace(default, workspace="ws1", sealed=b"three")
    first = replace(named, name="KEY")
    foreign = replace(account, owner=OTHER)
    for secret in (named, default, foreign, first, account, account):
        await store.put_secret(secret)
    assert await store.secrets(OWNER) == [account, default, first, named]
    newer = replace(default, sealed=b"newer", updated=NOW + SECOND)
    await store.put_secret(newer)
    await store.remove_secret(OWNER, "account", None, "TOKEN")
    await store.remove_secret(OWNER, "account", None, "TOKEN")
    await store.remove_secret(OWNER, "workspace", "ws1", "KEY")
    assert await store.secrets(OWNER) == [newer, named]
    assert await store.secrets(OTHER) == [foreign]


async def test_an_owner_has_one_agent(store: ControlStore) -> None:
    agent = Agent(OWNER, "do it", "TOKEN", "text", b"\x00sealed", NOW)
    assert await store.agent(OWNER) is None
    await store.put_agent(replace(agent, owner=OTHER))
    await store.put_agent(agent)
    newer = Agent(OWNER, "do more", "KEY", "jsonl", b"other", NOW + SECOND)
    await store.put_agent(newer)
    assert await store.agent(OWNER) == newer
    await store.remove_agent(OWNER)
    await store.remove_agent(OWNER)
    assert await store.agent(OWNER) is None
    assert await store.agent(OTHER) == replace(agent, owner=OTHER)


async def test_what_is_sealed_is_not_shown(store: ControlStore) -> None:
    for one in (
        StoredSecret(OWNER, "account", None, "TOKEN", b"canary", NOW),
        Agent(OWNER, "do it", "TOKEN", "text", b"canary", NOW),
    ):
        assert "canary" not in repr(one)


async def test_asks_are_listed_oldest_first_and_forgotten(store: ControlStore) -> None:
    bare = replace(make_ask(), workspace=None, box_id=None, options=(), created=NOW + SECOND)
    full, foreign = replace(make_ask(), expires=NOW), replace(make_ask(), owner=OTHER)
    for ask in (bare, full, foreign, full):
        await store.add_ask(ask)
    assert await store.asks(OWNER) == [full, bare]
    await store.remove_asks(NOW)
    assert await store.asks(OWNER) == [full, bare]
    await store.remove_asks(NOW + SECOND)
    assert await store.asks(OWNER) == [bare]
    assert await store.asks(OTHER) == [foreign]


async def test_questions_of_a_workspace_go_with_it(store: ControlStore) -> None:
    gone, kept = replace(make_ask(), workspace="ws1"), replace(make_ask(), workspace="ws2")
    default, foreign = replace(make_ask(), workspace=None), replace(gone, id="e" * 32, owner=OTHER)
    for ask in (gone, kept, default, foreign):
        await store.add_ask(ask)
    for _ in range(2):
        await store.remove_asks_of(OWNER, "ws1")
    assert {ask.id for ask in await store.asks(OWNER)} == {kept.id, default.id}
    assert await store.asks(OTHER) == [foreign]


async def test_the_first_answer_counts(store: ControlStore) -> None:
    ask, late = make_ask(), replace(make_ask(), created=NOW + SECOND)
    for one in (ask, late):
        await store.add_ask(one)
    answered = replace(ask, answer="yes", answered=NOW + SECOND)
    assert await store.answer_ask(ask.id, "yes", NOW + SECOND) == answered
    with pytest.raises(Conflict, match="already answered"):
        await store.answer_ask(ask.id, "no", NOW + 2 * SECOND)
    with pytest.raises(Conflict, match="already expired"):
        await store.answer_ask(late.id, "yes", late.expires)
    with pytest.raises(NotFound, match="no such question"):
        await store.answer_ask("f" * 32, "yes", NOW)
    assert await store.asks(OWNER) == [answered, late]
    assert [one.state(late.expires) for one in (answered, late)] == ["answered", "expired"]
    assert late.state(NOW) == "open"


def make_proxy_session(box: Box, key: ApiKey) -> ProxySession:
    """A session with every field set."""
    return ProxySession(
        *(random_hex(16), OWNER, "ws1", key.id, box.id, 3000, "web-3000.test", NOW, NOW + DAY)
    )


async def test_proxy_session_is_found_by_its_digest(store: ControlStore) -> None:
    box, key = make_box(), make_key()
    await store.add_box(box)
    await store.add_key(key, digest("key"))
    first = make_proxy_session(box, key)
    second = replace(make_proxy_session(box, key), scope=None, host=None)
    for session, cookie in ((first, "a"), (second, "b"), (first, "a")):
        await store.add_proxy_session(session, digest(cookie))
    assert await store.find_proxy_session(digest("a")) == first
    assert await store.find_proxy_session(digest("b")) == second
    assert await store.find_proxy_session(digest("c")) is None


async def test_proxy_sessions_go_with_their_box_and_with_their_key(store: ControlStore) -> None:
    boxes, keys = (make_box(), make_box("db")), (make_key(), make_key("other"))
    for box, key in zip(boxes, keys, strict=True):
        await store.add_box(box)
        await store.add_key(key, digest(key.name))
    for box in boxes:
        for key in keys:
            session = make_proxy_session(box, key)
            await store.add_proxy_session(session, digest(box.name + key.name))
    await store.remove_box(boxes[0].id)
    await store.remove_key(keys[0].id)
    left = [
        (box.name, key.name)
        for box in boxes
        for key in keys
        if await store.find_proxy_session(digest(box.name + key.name)) is not None
    ]
    assert left == [("db", "other")]
    for box, key in ((boxes[0], keys[1]), (boxes[1], keys[0])):
        with pytest.raises(NotFound, match="no such box"):
            await store.add_proxy_session(make_proxy_session(box, key), digest("late"))


async def test_a_proxy_session_needs_box_and_key_of_its_owner(store: ControlStore) -> None:
    box, foreign_box = make_box(), make_box(owner=OTHER)
    key, foreign_key = make_key(), make_key(owner=OTHER)
    for one in (box, foreign_box):
        await store.add_box(one)
    await store.add_key(key, digest("mine"))
    await store.add_key(foreign_key, digest("foreign"))
    await store.add_proxy_session(make_proxy_session(foreign_box, key), digest("a"))
    await store.add_proxy_session(make_proxy_session(box, foreign_key), digest("b"))
    assert await store.find_proxy_session(digest("a")) is None
    assert await store.find_proxy_session(digest("b")) is None


async def test_proxy_sessions_are_trimmed_to_the_newest(store: ControlStore) -> None:
    box, key = make_box(), make_key()
    other_box, other_key = make_box(owner=OTHER), make_key(owner=OTHER)
    for one, its in ((box, key), (other_box, other_key)):
        await store.add_box(one)
        await store.add_key(its, digest(its.id))
    for number in range(5):
        session = replace(make_proxy_session(box, key), created=NOW + number * SECOND)
        if number == 3:
            session = replace(session, expires=NOW + 4 * SECOND)
        await store.add_proxy_session(session, digest(str(number)))
    foreign = replace(make_proxy_session(other_box, other_key), owner=OTHER)
    await store.add_proxy_session(foreign, digest("foreign"))
    await store.trim_proxy_sessions(OWNER, NOW + 4 * SECOND, 2)
    left = [n for n in range(5) if await store.find_proxy_session(digest(str(n))) is not None]
    assert left == [2, 4]
    assert await store.find_proxy_session(digest("foreign")) == foreign


async def test_a_volume_waits_in_the_trash_and_comes_back(store: ControlStore) -> None:
    volume, second = make_volume("ws1"), make_volume("ws1")
    await store.add_volume(volume)
    await store.trash_volume(volume.id, NOW + DAY)
    await store.trash_volume(volume.id, NOW + 2 * DAY)
    await store.trash_volume("unknown", NOW)
    trashed = replace(volume, trashed_until=NOW + DAY)
    assert await store.find_volume(OWNER, "ws1") is None
    assert await store.list_volumes(OWNER) == [trashed]
    await store.add_volume(second)
    assert await store.find_volume(OWNER, "ws1") == second
    with pytest.raises(Conflict):
        await store.restore_volume(volume.id, "ws1")
    for _ in range(2):
        await store.restore_volume(volume.id, "ws2")
    assert await store.find_volume(OWNER, "ws2") == replace(volume, workspace="ws2")
    await store.trash_volume(second.id, NOW)
    await store.remove_volume(second.id)
    with pytest.raises(NotFound, match="no such volume"):
        await store.restore_volume(second.id, "ws1")
