"""The authorisation table, cell by cell."""

from __future__ import annotations

import itertools

import pytest

from boxd.authz import TABLE, Action, Target, may, require, workspace_of
from boxd.errors import Forbidden, NotFound
from boxd.principal import Principal, Via

OWNER = "SHA256:alice"
VIAS: tuple[Via, ...] = ("ssh_key", "api_key", "cookie", "share", "admin")
ACCOUNT = {"ssh_key", "api_key"}
HOLDERS = ACCOUNT | {"cookie", "share"}
EXPECTED: dict[Action, tuple[set[str], bool]] = {
    Action.SHOW_IDENTITY: (ACCOUNT, True),
    Action.LIST_BOXES: (ACCOUNT, True),
    Action.SHOW_BOX: (HOLDERS, True),
    Action.CREATE_BOX: (ACCOUNT, True),
    Action.ATTACH_BOX: (HOLDERS, True),
    Action.REMOVE_BOX: (ACCOUNT, True),
    Action.SUSPEND_BOX: (ACCOUNT, True),
    Action.PIN_BOX: (ACCOUNT, True),
    Action.KEEP_BOX: (ACCOUNT, True),
    Action.SNAPSHOT_BOX: (ACCOUNT, True),
    Action.RELAY_BOX: ({"ssh_key"}, False),
    Action.SHARE_BOX: (ACCOUNT, False),
    Action.LIST_PROFILES: (ACCOUNT, True),
    Action.LIST_CATALOG: (ACCOUNT, True),
    Action.CREATE_KEY: ({"ssh_key"}, False),
    Action.LIST_KEYS: (ACCOUNT, False),
    Action.REMOVE_KEY: (ACCOUNT, False),
    Action.LIST_ACCOUNT_KEYS: (ACCOUNT, False),
    Action.ADD_ACCOUNT_KEY: ({"ssh_key"}, False),
    Action.REMOVE_ACCOUNT_KEY: (ACCOUNT, False),
    Action.JOIN_ACCOUNT: ({"ssh_key"}, False),
    Action.MANAGE_RECOVERY: ({"ssh_key"}, False),
    Action.NAME_ACCOUNT: (ACCOUNT, False),
    Action.READ_DRIVE: (ACCOUNT, True),
    Action.WRITE_DRIVE: (ACCOUNT, True),
    Action.LIST_WORKSPACES: (ACCOUNT, True),
    Action.CREATE_WORKSPACE: (ACCOUNT, False),
    Action.REMOVE_WORKSPACE: (ACCOUNT, False),
    Action.CHANGE_PROFILE: (ACCOUNT, False),
    Action.LIST_SECRETS: (ACCOUNT, True),
    Action.CHANGE_SECRETS: (ACCOUNT, True),
    Action.READ_CANVAS: (ACCOUNT, True),
    Action.RENDER_CANVAS: (ACCOUNT, True),
    Action.LIST_ASKS: (ACCOUNT, True),
    Action.MAKE_ASK: (ACCOUNT, True),
    Action.ANSWER_ASK: (ACCOUNT, False),
    Action.CONFIGURE_AGENT: (ACCOUNT, False),
    Action.DRIVE_AGENT: (ACCOUNT, False),
    Action.ADMINISTER: ({"admin"}, False),
}


def test_every_action_has_a_row() -> None:
    assert set(TABLE) == set(Action) == set(EXPECTED)


@pytest.mark.parametrize(("action", "via"), list(itertools.product(Action, VIAS)))
def test_cell(action: Action, via: Via) -> None:
    vias, scoped = EXPECTED[action]
    allowed = via in vias
    own, named = Target(OWNER, None), Target(OWNER, "ws1")
    unscoped = Principal(OWNER, None, via)
    confined = Principal(OWNER, "ws1", via)
    assert may(unscoped, action) is allowed
    assert may(unscoped, action, own) is allowed
    assert may(unscoped, action, named) is allowed
    assert may(confined, action) is (allowed and scoped)
    assert may(confined, action, named) is (allowed and scoped)
    assert not may(confined, action, own)
    assert not may(confined, action, Target(OWNER, "ws2"))
    assert not may(unscoped, action, Target("SHA256:bob", None))


def test_foreign_target_is_not_found() -> None:
    with pytest.raises(NotFound):
        require(Principal(OWNER, None, "ssh_key"), Action.REMOVE_BOX, Target("SHA256:bob", None))


def test_refusal_names_the_scope() -> None:
    confined = Principal(OWNER, "ws1", "api_key")
    for action in (Action.CREATE_BOX, Action.CREATE_WORKSPACE):
        with pytest.raises(Forbidden, match="workspace ws1"):
            require(confined, action, Target(OWNER, "ws2"))


def test_keys_are_created_over_ssh_only() -> None:
    with pytest.raises(Forbidden, match="use ssh"):
        require(Principal(OWNER, None, "api_key"), Action.CREATE_KEY)


def test_scope_is_the_default_workspace() -> None:
    confined = Principal(OWNER, "ws1", "api_key")
    assert workspace_of(confined, None) == "ws1"
    assert workspace_of(confined, "ws1") == "ws1"
    with pytest.raises(Forbidden, match="workspace ws1"):
        workspace_of(confined, "ws2")
    assert workspace_of(Principal(OWNER, None, "api_key"), None) is None
    assert workspace_of(Principal(OWNER, None, "api_key"), "ws2") == "ws2"
