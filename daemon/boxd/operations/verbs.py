"""The registry of verbs: each operation for users, and how SSH, HTTP and MCP offer it.

The registry is the promise that the interfaces can do the same. Tests compare it with the methods
of `Operations`, with the commands, routes and tools that exist, and with the code of each. The page
`docs/reference/verbs.md` is generated from it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Interface: TypeAlias = Literal["ssh", "http", "mcp"]
INTERFACES: tuple[Interface, ...] = ("ssh", "http", "mcp")


@dataclass(frozen=True, kw_only=True, slots=True)
class Verb:
    """One operation. An interface without a name for it has the reason in `missing`."""

    method: str
    """The method that all interfaces call: `family.method` of `Operations`."""
    about: str
    """What the verb does, for the table of verbs."""
    ssh: tuple[str, ...] = ()
    """Commands of `ssh cli@HOST`."""
    http: tuple[str, ...] = ()
    """Routes, each as `METHOD TEMPLATE`."""
    mcp: tuple[str, ...] = ()
    """Tools."""
    missing: tuple[tuple[Interface, str], ...] = ()
    """Why an interface does not have the verb."""

    def names(self, interface: Interface) -> tuple[str, ...]:
        """Return the names of the verb at an interface."""
        return {"ssh": self.ssh, "http": self.http, "mcp": self.mcp}[interface]


_FILES = "a box reaches its drive as files: ssh, scp, sftp and rsync work on /wrk"
_NO_PAGES = "a terminal cannot show documents; see HTTP"

VERBS: tuple[Verb, ...] = (
    Verb(
        method="boxes.list_boxes",
        about="list boxes",
        ssh=("ls",),
        http=("GET /v1/boxes",),
        mcp=("fleet",),
    ),
    Verb(
        method="boxes.up",
        about="create a box, or wake it",
        ssh=("up",),
        http=("POST /v1/boxes",),
        mcp=("box_spawn",),
    ),
    Verb(
        method="boxes.inspect",
        about="show a box",
        ssh=("info", "ssh-config"),
        http=("GET /v1/boxes/{ref}",),
        mcp=("box_info",),
    ),
    Verb(
        method="boxes.remove",
        about="remove a box",
        ssh=("rm",),
        http=("DELETE /v1/boxes/{ref}",),
        mcp=("box_rm",),
    ),
    Verb(
        method="boxes.suspend",
        about="suspend a box",
        ssh=("suspend",),
        http=("POST /v1/boxes/{ref}/suspend",),
        mcp=("box_suspend",),
    ),
    Verb(
        method="boxes.resume",
        about="resume a box",
        ssh=("resume",),
        http=("POST /v1/boxes/{ref}/resume",),
        mcp=("box_resume",),
    ),
    Verb(
        method="boxes.pin",
        about="keep a box awake",
        ssh=("pin",),
        http=("PUT /v1/boxes/{ref}/pin",),
        mcp=("box_pin",),
    ),
    Verb(
        method="boxes.unpin",
        about="remove the pin of a box",
        ssh=("unpin",),
        http=("DELETE /v1/boxes/{ref}/pin",),
        mcp=("box_unpin", "box_pin"),
    ),
    Verb(
        method="boxes.keep",
        about="make a box durable",
        ssh=("keep",),
        http=("POST /v1/boxes/{ref}/keep",),
        mcp=("box_keep",),
    ),
    Verb(
        method="boxes.attach",
        about="run commands in a box, open its terminal, read and write its files",
        http=(
            "POST /v1/exec/{spec...}",
            "GET /v1/boxes/{box}/term",
            "GET /v1/boxes/{ref}/files/{path...}",
            "PUT /v1/boxes/{ref}/files/{path...}",
            "DELETE /v1/boxes/{ref}/files/{path...}",
        ),
        mcp=("box_exec", "box_read", "box_write"),
        missing=(("ssh", "the box itself is an SSH user: `ssh NAME@HOST`, scp, sftp, -L"),),
    ),
    Verb(
        method="commands.start_command",
        about="start a background command",
        ssh=("commands start",),
        http=("POST /v1/boxes/{ref}/commands", "POST /v1/exec/{spec...}"),
        mcp=("command_start",),
    ),
    Verb(
        method="commands.list_commands",
        about="list background commands",
        ssh=("commands ls",),
        http=("GET /v1/boxes/{ref}/commands",),
        mcp=("command_list",),
    ),
    Verb(
        method="commands.show_command",
        about="show a background command",
        http=("GET /v1/boxes/{ref}/commands/{command}",),
        missing=(
            ("ssh", "`commands ls` shows all of a box"),
            ("mcp", "`command_list` shows all of a box, and `command_output` the state of one"),
        ),
    ),
    Verb(
        method="commands.command_output",
        about="read the output of a background command",
        ssh=("commands output",),
        http=("GET /v1/boxes/{ref}/commands/{command}/output",),
        mcp=("command_output",),
    ),
    Verb(
        method="commands.write_command",
        about="write to a background command",
        ssh=("commands write",),
        http=("POST /v1/boxes/{ref}/commands/{command}/stdin",),
        mcp=("command_write",),
    ),
    Verb(
        method="commands.signal_command",
        about="send a signal to a background command",
        ssh=("commands signal",),
        http=("POST /v1/boxes/{ref}/commands/{command}/signal",),
        mcp=("command_end",),
    ),
    Verb(
        method="commands.remove_command",
        about="end a background command, and forget it",
        ssh=("commands rm",),
        http=("DELETE /v1/boxes/{ref}/commands/{command}",),
        mcp=("command_end",),
    ),
    Verb(
        method="watches.watch_files",
        about="watch files of a box for changes",
        http=("GET /v1/boxes/{ref}/watch",),
        missing=(
            ("ssh", "in a box: inotifywait and similar programs"),
            ("mcp", "a tool returns once; `box_exec` runs programs that wait for a change"),
        ),
    ),
    Verb(
        method="ports.list_ports",
        about="list the ports on which programs in a box listen",
        ssh=("ports",),
        http=("GET /v1/boxes/{ref}/ports",),
        mcp=("box_ports",),
    ),
    Verb(
        method="snapshots.create_snapshot",
        about="save the state of a box",
        ssh=("snapshot create",),
        http=("POST /v1/boxes/{ref}/snapshots",),
        mcp=("snapshot_create",),
    ),
    Verb(
        method="snapshots.list_snapshots",
        about="list snapshots of boxes",
        ssh=("snapshot ls",),
        http=("GET /v1/snapshots", "GET /v1/boxes/{ref}/snapshots"),
        mcp=("snapshot_list",),
    ),
    Verb(
        method="snapshots.remove_snapshot",
        about="remove a snapshot of a box",
        ssh=("snapshot rm",),
        http=("DELETE /v1/boxes/{ref}/snapshots/{name}",),
        mcp=("snapshot_rm",),
    ),
    Verb(
        method="snapshots.restore_snapshot",
        about="put a box back to a snapshot",
        ssh=("snapshot restore",),
        http=("POST /v1/boxes/{ref}/snapshots/{name}/restore",),
        mcp=("snapshot_restore",),
    ),
    Verb(
        method="snapshots.fork",
        about="create a box from a box or a snapshot",
        ssh=("snapshot fork",),
        http=("POST /v1/boxes/{ref}/fork", "POST /v1/boxes/{ref}/snapshots/{name}/fork"),
        mcp=("box_fork",),
    ),
    Verb(
        method="shares.create_share",
        about="share a box",
        ssh=("share", "share create"),
        http=("POST /v1/boxes/{ref}/shares",),
        mcp=("share_create",),
    ),
    Verb(
        method="shares.list_shares",
        about="list shares",
        ssh=("share ls",),
        http=("GET /v1/shares", "GET /v1/boxes/{ref}/shares"),
        mcp=("share_list",),
    ),
    Verb(
        method="shares.remove_share",
        about="revoke a share",
        ssh=("share rm",),
        http=("DELETE /v1/shares/{id}",),
        mcp=("share_rm",),
    ),
    Verb(
        method="workspaces.list_workspaces",
        about="list workspaces",
        ssh=("ws ls",),
        http=("GET /v1/workspaces",),
        mcp=("ws_list",),
    ),
    Verb(
        method="workspaces.create_workspace",
        about="create a workspace",
        ssh=("ws create",),
        http=("POST /v1/workspaces",),
        mcp=("ws_create",),
    ),
    Verb(
        method="workspaces.remove_workspace",
        about="remove a workspace",
        ssh=("ws rm",),
        http=("DELETE /v1/workspaces/{name}",),
        mcp=("ws_rm",),
    ),
    Verb(
        method="workspaces.set_workspace_profile",
        about="set the default profile of a workspace",
        ssh=("ws profile",),
        http=("PUT /v1/workspaces/{name}/profile",),
        mcp=("ws_profile",),
    ),
    Verb(
        method="profiles.list_profiles",
        about="list profiles",
        ssh=("profiles ls",),
        http=("GET /v1/profiles",),
        mcp=("profile_list",),
    ),
    Verb(
        method="profiles.show_profile",
        about="show a profile",
        ssh=("profiles show",),
        http=("GET /v1/profiles/{name}",),
        mcp=("profile_show",),
    ),
    Verb(
        method="profiles.set_profile",
        about="name an image with default settings",
        ssh=("profiles set",),
        http=("PUT /v1/profiles/{name}",),
        mcp=("profile_set",),
    ),
    Verb(
        method="builds.build_profile",
        about="build a profile from the disk of a box",
        ssh=("profiles build",),
        http=("POST /v1/profiles/{name}/build",),
        mcp=("profile_build",),
    ),
    Verb(
        method="profiles.remove_profile",
        about="remove a profile",
        ssh=("profiles rm",),
        http=("DELETE /v1/profiles/{name}",),
        mcp=("profile_rm",),
    ),
    Verb(
        method="secrets.list_secrets",
        about="list secrets",
        ssh=("secret ls",),
        http=("GET /v1/secrets",),
        mcp=("secret_list",),
    ),
    Verb(
        method="secrets.set_secret",
        about="set a secret",
        ssh=("secret set",),
        http=("PUT /v1/secrets/{name}",),
        mcp=("secret_set",),
    ),
    Verb(
        method="secrets.remove_secret",
        about="remove a secret",
        ssh=("secret rm",),
        http=("DELETE /v1/secrets/{name}",),
        mcp=("secret_rm",),
    ),
    Verb(
        method="keys.create_key",
        about="create an API key",
        ssh=("apikeys create",),
        missing=(
            ("http", "only the private SSH key creates keys, so a stolen key creates no others"),
            ("mcp", "only the private SSH key creates keys, so a stolen key creates no others"),
        ),
    ),
    Verb(
        method="keys.list_keys",
        about="list API keys",
        ssh=("apikeys ls",),
        http=("GET /v1/keys",),
        mcp=("key_list",),
    ),
    Verb(
        method="keys.remove_key",
        about="revoke an API key",
        ssh=("apikeys rm",),
        http=("DELETE /v1/keys/{name}",),
        mcp=("key_rm",),
    ),
    Verb(
        method="agents.show_agent",
        about="show the program that runs tasks",
        ssh=("agent show",),
        http=("GET /v1/agent",),
        mcp=("agent_show",),
    ),
    Verb(
        method="agents.set_agent",
        about="set the program that runs tasks",
        ssh=("agent set",),
        http=("PUT /v1/agent",),
        mcp=("agent_set",),
    ),
    Verb(
        method="agents.remove_agent",
        about="remove the program that runs tasks",
        ssh=("agent rm",),
        http=("DELETE /v1/agent",),
        mcp=("agent_rm",),
    ),
    Verb(
        method="delegations.delegate",
        about="run a task in a box",
        mcp=("delegate",),
        missing=(
            ("ssh", "`ssh _@HOST COMMAND` runs a command in a box that is removed afterwards"),
            ("http", "`POST /v1/exec/_` runs a command in a box that is removed afterwards"),
        ),
    ),
    Verb(
        method="asks.list_asks",
        about="list open questions",
        ssh=("asks ls",),
        http=("GET /v1/asks",),
        mcp=("fleet",),
    ),
    Verb(
        method="asks.ask",
        about="ask the owner a question",
        http=("POST /v1/asks",),
        mcp=("ask",),
        missing=(("ssh", "the owner is the one who connects by SSH; boxes use `box-guest ask`"),),
    ),
    Verb(
        method="asks.wait_ask",
        about="wait for the answer to a question",
        http=("GET /v1/asks/{id}",),
        mcp=("ask",),
        missing=(("ssh", "the owner is the one who connects by SSH; boxes use `box-guest ask`"),),
    ),
    Verb(
        method="asks.answer_ask",
        about="answer a question",
        ssh=("asks answer",),
        http=("POST /v1/asks/{id}/answer",),
        mcp=("answer",),
    ),
    Verb(
        method="stats.whoami",
        about="show the identity of the caller",
        ssh=("whoami",),
        http=("GET /v1/whoami",),
        mcp=("whoami",),
    ),
    Verb(
        method="stats.account_stats",
        about="show the usage and limits of the account",
        ssh=("stat",),
        http=("GET /v1/stat",),
        mcp=("stat",),
    ),
    Verb(
        method="stats.box_stats",
        about="show the usage and limits of a box",
        ssh=("stat",),
        http=("GET /v1/boxes/{ref}/stat",),
        mcp=("stat",),
    ),
    Verb(
        method="catalog.images",
        about="list images",
        ssh=("images",),
        http=("GET /v1/images",),
        mcp=("image_list",),
    ),
    Verb(
        method="catalog.flavors",
        about="list flavors",
        ssh=("flavors",),
        http=("GET /v1/flavors",),
        mcp=("flavor_list",),
    ),
    Verb(
        method="drives.open",
        about="read and write files of a drive",
        http=(
            "GET /v1/wrk/{path...}",
            "PUT /v1/wrk/{path...}",
            "DELETE /v1/wrk/{path...}",
        ),
        mcp=("wrk_list", "wrk_read", "wrk_write", "wrk_mkdir", "wrk_delete"),
        missing=(("ssh", _FILES),),
    ),
    Verb(
        method="trash.list_trash",
        about="list removed files",
        http=("GET /v1/trash",),
        mcp=("wrk_trash",),
        missing=(("ssh", "in a box: `box-guest trash ls`"),),
    ),
    Verb(
        method="trash.restore",
        about="restore removed files",
        http=("POST /v1/trash/restore", "POST /v1/trash/{number}/restore"),
        mcp=("wrk_restore",),
        missing=(("ssh", "in a box: `box-guest trash restore`"),),
    ),
    Verb(
        method="copies.list_snapshots",
        about="list snapshots of a drive",
        http=("GET /v1/drive/snapshots",),
        mcp=("wrk_snapshots",),
        missing=(("ssh", "in a box: the directory /wrk/.snapshots lists them"),),
    ),
    Verb(
        method="copies.create_snapshot",
        about="create a snapshot of a drive",
        http=("POST /v1/drive/snapshots",),
        mcp=("wrk_snapshot",),
        missing=(("ssh", _FILES),),
    ),
    Verb(
        method="copies.remove_snapshot",
        about="remove a snapshot of a drive",
        http=("DELETE /v1/drive/snapshots/{name}",),
        mcp=("wrk_snapshot_remove",),
        missing=(("ssh", _FILES),),
    ),
    Verb(
        method="copies.restore_snapshot",
        about="copy files of a snapshot back",
        http=("POST /v1/drive/snapshots/{name}/restore",),
        mcp=("wrk_snapshot_restore",),
        missing=(("ssh", "in a box: `cp -r /wrk/.snapshots/NAME/...`"),),
    ),
    Verb(
        method="copies.clone",
        about="copy a file or directory without copying its bytes",
        http=("POST /v1/drive/clone",),
        mcp=("wrk_clone",),
        missing=(("ssh", "in a box: `cp --reflink`"),),
    ),
    Verb(
        method="copies.move",
        about="move a file or directory",
        http=("POST /v1/drive/move",),
        mcp=("wrk_move",),
        missing=(("ssh", _FILES),),
    ),
    Verb(
        method="canvases.list_canvases",
        about="list canvases",
        http=("GET /v1/surfaces",),
        mcp=("surface_list",),
        missing=(("ssh", _NO_PAGES),),
    ),
    Verb(
        method="canvases.read_canvas",
        about="show a canvas",
        http=("GET /v1/surfaces/{canvas}",),
        mcp=("svc://surfaces/{id}",),
        missing=(("ssh", _NO_PAGES),),
    ),
    Verb(
        method="canvases.render_canvas",
        about="render a canvas",
        http=("PUT /v1/surfaces/{canvas}",),
        mcp=("surface_render",),
        missing=(("ssh", _NO_PAGES),),
    ),
    Verb(
        method="canvases.remove_canvas",
        about="remove a canvas",
        http=("DELETE /v1/surfaces/{canvas}",),
        mcp=("surface_rm",),
        missing=(("ssh", _NO_PAGES),),
    ),
)

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
