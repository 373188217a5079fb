"""Authorization: one table of rules, one function that decides, and the workspace of a call.

A principal has access only to the objects of its owner. A scoped credential has access only to its
workspace. Some actions are forbidden for scoped credentials; the error says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from boxd.errors import BadRequest, Forbidden, NotFound
from boxd.names.words import parse_workspace

if TYPE_CHECKING:
    from boxd.principal import Principal, Via


class Action(StrEnum):
    """An action that an interface can request."""

    SHOW_IDENTITY = "show your identity"
    LIST_BOXES = "list boxes"
    SHOW_BOX = "show a box"
    CREATE_BOX = "create a box"
    ATTACH_BOX = "attach to a box"
    REMOVE_BOX = "remove a box"
    SUSPEND_BOX = "suspend or resume a box"
    PIN_BOX = "pin a box"
    KEEP_BOX = "keep a box"
    SNAPSHOT_BOX = "snapshot or fork a box"
    RELAY_BOX = "reach a confidential box"
    SHARE_BOX = "share a box"
    LIST_PROFILES = "list profiles"
    LIST_CATALOG = "list images and flavors"
    CREATE_KEY = "create an API key"
    LIST_KEYS = "list API keys"
    REMOVE_KEY = "remove an API key"
    LIST_ACCOUNT_KEYS = "list SSH keys"
    ADD_ACCOUNT_KEY = "add an SSH key"
    REMOVE_ACCOUNT_KEY = "remove an SSH key"
    JOIN_ACCOUNT = "join an account"
    MANAGE_RECOVERY = "manage recovery codes"
    NAME_ACCOUNT = "name your account"
    READ_DRIVE = "read the drive"
    WRITE_DRIVE = "write to the drive"
    LIST_WORKSPACES = "list workspaces"
    CREATE_WORKSPACE = "create a workspace"
    REMOVE_WORKSPACE = "remove a workspace"
    CHANGE_PROFILE = "change a profile"
    LIST_SECRETS = "list secrets"
    CHANGE_SECRETS = "set or remove secrets"
    READ_CANVAS = "read a canvas"
    RENDER_CANVAS = "render or remove a canvas"
    LIST_ASKS = "list asks"
    MAKE_ASK = "ask"
    ANSWER_ASK = "answer an ask"
    CONFIGURE_AGENT = "configure the agent"
    DRIVE_AGENT = "drive an agent"
    ADMINISTER = "administer the fleet"


@dataclass(frozen=True, slots=True)
class Rule:
    """`vias`: the allowed ways of authentication. `scoped`: allowed for scoped credentials too."""

    vias: frozenset[Via]
    scoped: bool


@dataclass(frozen=True, slots=True)
class Target:
    """The workspace that the action affects, and its owner. None: the default workspace."""

    owner: str
    workspace: str | None


_ACCOUNT: frozenset[Via] = frozenset({"ssh_key", "api_key"})
_SSH: frozenset[Via] = frozenset({"ssh_key"})
_HOLDERS: frozenset[Via] = frozenset({"ssh_key", "api_key", "cookie", "share"})
_ADMIN: frozenset[Via] = frozenset({"admin"})

TABLE: dict[Action, Rule] = {
    Action.SHOW_IDENTITY: Rule(_ACCOUNT, scoped=True),
    Action.LIST_BOXES: Rule(_ACCOUNT, scoped=True),
    Action.SHOW_BOX: Rule(_HOLDERS, scoped=True),
    Action.CREATE_BOX: Rule(_ACCOUNT, scoped=True),
    Action.ATTACH_BOX: Rule(_HOLDERS, scoped=True),
    Action.REMOVE_BOX: Rule(_ACCOUNT, scoped=True),
    Action.SUSPEND_BOX: Rule(_ACCOUNT, scoped=True),
    Action.PIN_BOX: Rule(_ACCOUNT, scoped=True),
    Action.KEEP_BOX: Rule(_ACCOUNT, scoped=True),
    Action.SNAPSHOT_BOX: Rule(_ACCOUNT, scoped=True),
    Action.RELAY_BOX: Rule(_SSH, scoped=False),
    Action.SHARE_BOX: Rule(_ACCOUNT, scoped=False),
    Action.LIST_PROFILES: Rule(_ACCOUNT, scoped=True),
    Action.LIST_CATALOG: Rule(_ACCOUNT, scoped=True),
    Action.CREATE_KEY: Rule(_SSH, scoped=False),
    Action.LIST_KEYS: Rule(_ACCOUNT, scoped=False),
    Action.REMOVE_KEY: Rule(_ACCOUNT, scoped=False),
    Action.LIST_ACCOUNT_KEYS: Rule(_ACCOUNT, scoped=False),
    Action.ADD_ACCOUNT_KEY: Rule(_SSH, scoped=False),
    Action.REMOVE_ACCOUNT_KEY: Rule(_ACCOUNT, scoped=False),
    Action.JOIN_ACCOUNT: Rule(_SSH, scoped=False),
    Action.MANAGE_RECOVERY: Rule(_SSH, scoped=False),
    Action.NAME_ACCOUNT: Rule(_ACCOUNT, scoped=False),
    Action.READ_DRIVE: Rule(_ACCOUNT, scoped=True),
    Action.WRITE_DRIVE: Rule(_ACCOUNT, scoped=True),
    Action.LIST_WORKSPACES: Rule(_ACCOUNT, scoped=True),
    Action.CREATE_WORKSPACE: Rule(_ACCOUNT, scoped=False),
    Action.REMOVE_WORKSPACE: Rule(_ACCOUNT, scoped=False),
    Action.CHANGE_PROFILE: Rule(_ACCOUNT, scoped=False),
    Action.LIST_SECRETS: Rule(_ACCOUNT, scoped=True),
    Action.CHANGE_SECRETS: Rule(_ACCOUNT, scoped=True),
    Action.READ_CANVAS: Rule(_ACCOUNT, scoped=True),
    Action.RENDER_CANVAS: Rule(_ACCOUNT, scoped=True),
    Action.LIST_ASKS: Rule(_ACCOUNT, scoped=True),
    Action.MAKE_ASK: Rule(_ACCOUNT, scoped=True),
    Action.ANSWER_ASK: Rule(_ACCOUNT, scoped=False),
    Action.CONFIGURE_AGENT: Rule(_ACCOUNT, scoped=False),
    Action.DRIVE_AGENT: Rule(_ACCOUNT, scoped=False),
    Action.ADMINISTER: Rule(_ADMIN, scoped=False),
}


def may(principal: Principal, action: Action, target: Target | None = None) -> bool:
    """Return whether the principal may do the action. `target` None: ignore the target."""
    try:
        require(principal, action, target)
    except (Forbidden, NotFound):
        return False
    return True


def require(principal: Principal, action: Action, target: Target | None = None) -> None:
    """Check that the principal may do the action.

    Raises Forbidden, or NotFound for an object of another owner, as for an object that is missing.
    """
    rule = TABLE[action]
    if principal.via not in rule.vias:
        where = " here: use ssh" if rule.vias == _SSH else " with this credential"
        raise Forbidden(f"you cannot {action.value}{where}")
    if principal.scope is not None and not rule.scoped:
        raise Forbidden(f"you cannot {action.value}: {_confined(principal.scope)}")
    if target is None:
        return
    if target.owner != principal.owner:
        raise NotFound("no such box")
    if principal.scope is not None and target.workspace != principal.scope:
        raise Forbidden(_confined(principal.scope))


def workspace_of(principal: Principal, requested: str | None) -> str | None:
    """Return the workspace of a request: the requested one, else the default of the credential.

    Raises Forbidden with the scope if a scoped credential requests another workspace.
    """
    if principal.scope is not None and requested not in (None, principal.scope):
        raise Forbidden(_confined(principal.scope))
    return principal.scope if requested is None else requested


def checked_workspace(p: Principal, ws: str | None) -> str | None:
    """Return the workspace of a call whose text may name one.

    Raises BadName, and what `workspace_of` raises.
    """
    return workspace_of(p, None if ws is None else parse_workspace(ws))


def joined_workspace(p: Principal, inside: str | None, ws: str | None) -> str | None:
    """Return the workspace of a call. The reference or spec may name one too (`inside`).

    Raises BadRequest if the two differ, and what `checked_workspace` raises.
    """
    requested = None if ws is None else parse_workspace(ws)
    if inside is not None and requested is not None and inside != requested:
        raise BadRequest(f"the box names workspace {inside}, but ws is {requested}; give only one")
    return workspace_of(p, inside or requested)


def _confined(scope: str) -> str:
    return f"this credential is confined to workspace {scope}"
