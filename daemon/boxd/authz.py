"""Who may do what: one table, one function that decides.

Everything is confined to the principal's owner. A scoped credential is confined to its workspace
as well; some actions are refused to it altogether (not widened, not hidden).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from boxd.errors import Forbidden, NotFound

if TYPE_CHECKING:
    from boxd.principal import Principal, Via


class Action(StrEnum):
    """What a surface can ask for."""

    LIST_BOXES = "list boxes"
    SHOW_BOX = "show a box"
    CREATE_BOX = "create a box"
    ATTACH_BOX = "attach to a box"
    REMOVE_BOX = "remove a box"
    SUSPEND_BOX = "suspend or resume a box"
    PIN_BOX = "pin a box"
    SNAPSHOT_BOX = "snapshot or fork a box"
    RELAY_BOX = "reach a confidential box"
    SHARE_BOX = "share a box"
    LIST_PROFILES = "list profiles"
    LIST_CATALOG = "list images and flavors"
    CREATE_KEY = "create an API key"
    LIST_KEYS = "list API keys"
    REMOVE_KEY = "remove an API key"
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
    """`vias`: ways of authentication that may. `scoped`: a scoped credential may, in its scope."""

    vias: frozenset[Via]
    scoped: bool


@dataclass(frozen=True, slots=True)
class Target:
    """What the action is about: somebody's workspace (None: the default one)."""

    owner: str
    workspace: str | None


_ACCOUNT: frozenset[Via] = frozenset({"ssh_key", "api_key"})
_SSH: frozenset[Via] = frozenset({"ssh_key"})
_HOLDERS: frozenset[Via] = frozenset({"ssh_key", "api_key", "cookie", "share"})
_ADMIN: frozenset[Via] = frozenset({"admin"})

TABLE: dict[Action, Rule] = {
    Action.LIST_BOXES: Rule(_ACCOUNT, scoped=True),
    Action.SHOW_BOX: Rule(_HOLDERS, scoped=True),
    Action.CREATE_BOX: Rule(_ACCOUNT, scoped=True),
    Action.ATTACH_BOX: Rule(_HOLDERS, scoped=True),
    Action.REMOVE_BOX: Rule(_ACCOUNT, scoped=True),
    Action.SUSPEND_BOX: Rule(_ACCOUNT, scoped=True),
    Action.PIN_BOX: Rule(_ACCOUNT, scoped=True),
    Action.SNAPSHOT_BOX: Rule(_ACCOUNT, scoped=True),
    Action.RELAY_BOX: Rule(_SSH, scoped=False),
    Action.SHARE_BOX: Rule(_SSH, scoped=False),
    Action.LIST_PROFILES: Rule(_ACCOUNT, scoped=True),
    Action.LIST_CATALOG: Rule(_ACCOUNT, scoped=True),
    Action.CREATE_KEY: Rule(_SSH, scoped=False),
    Action.LIST_KEYS: Rule(_SSH, scoped=False),
    Action.REMOVE_KEY: Rule(_SSH, scoped=False),
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
    Action.CONFIGURE_AGENT: Rule(_SSH, scoped=False),
    Action.DRIVE_AGENT: Rule(_ACCOUNT, scoped=False),
    Action.ADMINISTER: Rule(_ADMIN, scoped=False),
}


def may(principal: Principal, action: Action, target: Target | None = None) -> bool:
    """Whether the principal may; `target` None asks for the action as such."""
    try:
        require(principal, action, target)
    except (Forbidden, NotFound):
        return False
    return True


def require(principal: Principal, action: Action, target: Target | None = None) -> None:
    """Raises Forbidden, or NotFound for what belongs to others (they are not told apart)."""
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


def workspace_of(principal: Principal, asked: str | None) -> str | None:
    """The workspace a call is about: what was asked for, else the credential's default.

    Raises Forbidden naming the scope when a scoped credential asks for another one.
    """
    if principal.scope is not None and asked not in (None, principal.scope):
        raise Forbidden(_confined(principal.scope))
    return principal.scope if asked is None else asked


def _confined(scope: str) -> str:
    return f"this credential is confined to workspace {scope}"
