"""All verbs, and the methods of operations that are no verbs.

The registry is the promise that the interfaces can do the same. Tests compare it with the methods
of `Operations`, with the commands, routes and tools that exist, and with the code of each. The page
`docs/reference/verbs.md` is generated from it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from boxd.operations.verbs import account, boxes, drives

if TYPE_CHECKING:
    from boxd.operations.verbs.verb import Verb

VERBS: tuple[Verb, ...] = (*boxes.VERBS, *drives.VERBS, *account.VERBS)

PLUMBING: dict[str, str] = {
    "asks.request_of_box": "serves the agent of a box",
    "boxes.removal_news": "is the greeting of an SSH login",
    "catalog.default_flavor": "is a value, not a verb",
    "catalog.rootfs": "serves the backend",
    "callers.came": "records the source of a request",
    "callers.check_admitted": "is part of authentication",
    "callers.close": "belongs to the stop of the service",
    "callers.seen": "records the time of a request",
    "directory.check_visible": "is a part of other verbs",
    "directory.creatable": "is a part of other verbs",
    "directory.is_anywhere": "answers the TLS proxy, without a credential",
    "directory.resolve": "is a part of other verbs",
    "directory.view": "is a part of other verbs",
    "directory.visible": "is a part of other verbs",
    "drives.open_for": "serves the agent of a box",
    "idempotent.once": "is a part of the creations of HTTP",
    "keys.principal_of_key": "is authentication",
    "keys.revoke": "is a part of other verbs",
    "output.room": "limits the output that the service buffers",
    "preview_sessions.dial": "is a part of the proxy",
    "preview_sessions.open_proxy_session": "is authentication of a browser",
    "preview_sessions.opened_by_cookie": "is authentication of a browser",
    "profiles.check_room": "is a part of other verbs",
    "profiles.profile_of": "is a part of other verbs",
    "profiles.put": "is a part of other verbs",
    "shares.attach_shared": "serves the SSH users of shares",
    "shares.principal_of_share": "is authentication",
    "stats.box_limits": "is a part of other verbs",
    "texts.named": "names the SSH server in texts",
    "trash.close": "belongs to the stop of the service",
    "trash.request_of_box": "serves the agent of a box",
    "visits.changes": "is the push of MCP resources",
    "visits.visit": "ends MCP connections with their key",
    "workspaces.drive_usage": "is a part of other verbs",
}
"""Methods of families that are not verbs for users, each with what it is for."""

FOR_ADMINISTRATORS = ("fleet", "owners")
"""Families of `ssh sudo@HOST`. Administrators have no interface but SSH."""
