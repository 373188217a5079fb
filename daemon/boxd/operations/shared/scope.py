"""The workspace that a call addresses, and the expiry of the credential that makes the call."""

from __future__ import annotations

from typing import TYPE_CHECKING

from boxd.authz import workspace_of
from boxd.boxes.presence.expiry import Expiry
from boxd.errors import BadRequest
from boxd.names.words import parse_workspace

if TYPE_CHECKING:
    from boxd.principal import Principal


def expiry_of(p: Principal) -> Expiry | None:
    """Return when a principal's credential expires, and the message for it; None: never."""
    names = {"api_key": "API key", "share": "share link", "cookie": "session of a browser"}
    what = names.get(p.via, "credential")
    return None if p.expires is None else Expiry(p.expires, f"this {what} has expired")


def checked_workspace(p: Principal, ws: str | None) -> str | None:
    """Return the workspace of a call.

    Raises BadName, and Forbidden for a workspace outside the principal's scope.
    """
    return workspace_of(p, None if ws is None else parse_workspace(ws))


def joined_workspace(p: Principal, inside: str | None, ws: str | None) -> str | None:
    """Return the workspace of a call whose text may also name one (`inside`).

    Raises BadRequest if the two differ, and what `checked_workspace` raises.
    """
    asked = None if ws is None else parse_workspace(ws)
    if inside is not None and asked is not None and inside != asked:
        raise BadRequest(f"the box is asked for in workspace {inside}, and by ws in {asked}")
    return workspace_of(p, inside or asked)
