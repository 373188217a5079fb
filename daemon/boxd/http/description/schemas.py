"""JSON schemas of the values that the API sends and accepts."""

from __future__ import annotations

from box_guest.shared.command_messages import MAX_TIMEOUT_S as MAX_BACKGROUND_S
from box_guest.shared.command_messages import SIGNALS
from boxd.boxes.commands.exec import MAX_TIMEOUT_S
from boxd.http.description.account_schemas import ACCOUNT_SCHEMAS
from boxd.http.description.forms import BASE64, COUNT, TEXT, TIME, described, or_null, record
from boxd.http.description.operation import NAME, Json, array, ref
from boxd.model.box import BoxState

UPGRADED: Json = {
    "description": "The connection is a WebSocket. A refused handshake returns an error status.",
    "headers": {"Upgrade": {"schema": {"type": "string", "const": "websocket"}}},
}
"""The response to a WebSocket handshake that succeeded."""
_ENCODED: Json = {"type": "string", "pattern": "%[89A-F][0-9A-F]"}
"""Percent-encoded bytes, of which at least one is not ASCII."""


def _closed(about: str, fields: dict[str, Json], *optional: str) -> Json:
    """Return an object like `record` that has no other fields."""
    return {**record(about, fields, *optional), "additionalProperties": False}


_STATE = described(
    {"type": "string", "enum": [state.value for state in BoxState]}, "The state, as `ls` shows it."
)
_BOX: dict[str, Json] = {
    "id": {"type": "string", "pattern": "^[0-9a-f]{32}$"},
    "name": {"type": "string", "pattern": NAME},
    "workspace": described({"type": "string"}, "Absent in the default workspace."),
    "image": TEXT,
    "state": _STATE,
    "age_s": {"type": "number", "minimum": 0},
    "cpus": {"type": "number", "exclusiveMinimum": 0},
    "mem_mb": COUNT,
    "ref": described(TEXT, "The reference that addresses the box: `name` or `workspace/name`."),
    "flavor": TEXT,
    "profile": described(
        or_null(TEXT), "The profile that the box was created from; null: none, or unknown."
    ),
    "detail": described(TEXT, "The reason of the state; often empty."),
    "attached": described(COUNT, "The number of attachments that keep the box awake."),
    "why": {
        "type": "object",
        "additionalProperties": COUNT,
        "description": "The number of attachments by kind.",
    },
    "created": TIME,
    "deadline": described(
        or_null(TIME), "The time when the box is removed, even while it is in use."
    ),
    "grace_s": described(
        or_null({"type": "number"}),
        "Seconds that the box stays awake after the last attachment ends.",
    ),
    "clamped": described({"type": "boolean"}, "The deadline is earlier than requested."),
    "next": described(or_null(ref("NextAct")), "The next automatic action; null: none."),
    "removal": described(
        or_null(ref("Removal")),
        "The automatic removal of the box if nobody uses it until then; null: none.",
    ),
    "memory": described({"type": "boolean"}, "The box is suspended and its memory is saved."),
    "durable": described({"type": "boolean"}, "The service removes the box only at its deadline."),
    "auto_suspend": {"type": "boolean"},
    "pinned_until": or_null(TIME),
    "pin_why": TEXT,
    "egress": described(TEXT, "`all`, `none`, or a list of names and networks."),
    "disk_mb": described(COUNT, "Limit in MiB; 0: no limit."),
    "pids": COUNT,
    "drive": described({"type": "boolean"}, "/wrk is mounted in the box."),
    "confidential": {"type": "boolean"},
    "runtime": described(TEXT, "The OCI runtime; empty: the default of the host."),
    "containers": described({"type": "boolean"}, "The box may run containers inside it."),
    "no_suspend": described(TEXT, "Why the box is never suspended; empty: it can be."),
    "usage": described(or_null(ref("Usage")), "The last measurement; null: none yet."),
}

COMMAND_ID = "^[0-9a-f]{16}$"
"""Pattern of the ids of background commands."""
_TIMEOUT: Json = {"type": "integer", "minimum": 1, "maximum": MAX_TIMEOUT_S, "default": 300}
_CMD = described(
    {"type": "string", "minLength": 1, "pattern": r"^[^\u0000]+$"},
    "The command; the login shell of the box runs it.",
)
_ENV: Json = {
    "type": "object",
    "propertyNames": {"pattern": "^[A-Za-z_][A-Za-z0-9_]*$"},
    "additionalProperties": {"type": "string", "pattern": r"^[^\u0000]*$"},
    "maxProperties": 256,
}

SCHEMAS: dict[str, Json] = {
    "Error": record(
        "The body of every error: what happened, to what, and what to do next.",
        {"error": TEXT},
    ),
    "Ok": record("The answer is yes.", {"ok": {"type": "boolean", "const": True}}),
    "Box": record("One box.", _BOX, "workspace"),
    "MadeBox": record(
        "A box that the request created or resumed.",
        {
            **_BOX,
            "notes": described({"type": "array", "items": TEXT}, "Remarks for people."),
        },
        "workspace",
    ),
    "BoxState": record("The current state of a box.", {"state": _STATE}),
    "NextAct": record(
        "The next automatic action on a box.",
        {"act": {"type": "string", "enum": ["removed", "suspended"]}, "at": TIME},
    ),
    "Removal": record(
        "An automatic removal of a box, and its cause.",
        {"at": TIME, "why": {"type": "string", "enum": ["deadline", "unused"]}},
    ),
    "Usage": record(
        "The host resources that a box uses.",
        {
            "at": TIME,
            "cpu_s": {"type": "number"},
            "cpu_share": or_null({"type": "number"}),
            "memory_bytes": COUNT,
            "disk_bytes": COUNT,
            "pids": COUNT,
            "net_rx_bytes": COUNT,
            "net_tx_bytes": COUNT,
            "oom_kills": COUNT,
            "saved_memory_bytes": COUNT,
        },
    ),
    "Image": record(
        "An image that a box can start from.",
        {"name": TEXT, "description": TEXT, "built": {"type": "boolean"}},
    ),
    "Flavor": record(
        "A set of resource limits for a box.",
        {
            "name": TEXT,
            "description": TEXT,
            "cpus": {"type": "number", "exclusiveMinimum": 0},
            "mem_mb": COUNT,
        },
    ),
    "Canvas": record(
        "A document that a program rendered, without its content.",
        {
            "id": {"type": "string", "pattern": "^[a-z0-9-]{1,64}$"},
            "title": TEXT,
            "mime": TEXT,
            "size": COUNT,
            "revision": {"type": "integer", "minimum": 1},
            "scope": or_null(TEXT),
            "updated": TIME,
            "expires": or_null(TIME),
            "uri": TEXT,
        },
    ),
    "ExecBody": _closed(
        "A command with its whole standard input.",
        {
            "cmd": _CMD,
            "env": _ENV,
            "timeout_s": or_null(_TIMEOUT),
            "stdin": described(TEXT, "The standard input, as text."),
        },
        "env",
        "timeout_s",
        "stdin",
    ),
    "BatchEvent": record(
        "One event of a batch. `stdout` and `stderr` carry the JSON `{box, data}` with base64,"
        " `exit` carries `{box, code}`, and `failed` carries `{box, status, error}`. The last event"
        " is `done`.",
        {
            "event": {"type": "string", "enum": ["stdout", "stderr", "exit", "failed", "done"]},
            "data": TEXT,
        },
    ),
    "ExecHeader": record(
        "The first line of an exec body.",
        {
            "cmd": _CMD,
            "env": _ENV,
            "timeout_s": _TIMEOUT,
        },
        "env",
        "timeout_s",
    ),
    "ExecEvent": record(
        "One event of an exec stream. `stdout` and `stderr` carry base64; the last event, `exit`,"
        " carries the JSON `{code}`.",
        {"event": {"type": "string", "enum": ["stdout", "stderr", "exit"]}, "data": TEXT},
    ),
    "Event": record(
        "One message as an event. The first event of a stream in a session has an `id`, a `retry`"
        " in milliseconds and no data.",
        {"event": TEXT, "data": TEXT, "id": TEXT, "retry": COUNT},
        "event",
        "id",
        "retry",
    ),
    "ExecResult": record(
        "The result of a command. `exit_code` is 124 after a timeout, and 128 plus the signal"
        " number after a signal.",
        {"exit_code": COUNT, "stdout": BASE64, "stderr": BASE64, "duration_ms": COUNT},
    ),
    "NewCommand": _closed(
        "A background command to start.",
        {
            "cmd": _CMD,
            "env": _ENV,
            "timeout_s": described(
                or_null({"type": "integer", "minimum": 1, "maximum": MAX_BACKGROUND_S}),
                "Seconds after which the service ends the command; without it, never.",
            ),
            "stdin": described(
                {"type": "boolean", "default": False}, "Its input stays open for later writes."
            ),
            "keep_awake": described(
                {"type": "boolean", "default": True},
                "The box is not suspended automatically while the command runs.",
            ),
        },
        "env",
        "timeout_s",
        "stdin",
        "keep_awake",
    ),
    "Command": record(
        "A background command. Its box stores the last 16 MiB of its output.",
        {
            "id": {"type": "string", "pattern": COMMAND_ID},
            "box": {"type": "string", "pattern": "^[0-9a-f]{32}$"},
            "cmd": described(TEXT, "The first 1000 characters of the command."),
            "state": {"type": "string", "enum": ["running", "exited"]},
            "exit_code": described(
                or_null(COUNT),
                "124 after the timeout, and 128 plus the signal number after a signal; null: it"
                " runs.",
            ),
            "signal": described(or_null(TEXT), "The signal that ended the command, without SIG."),
            "pid": described(COUNT, "The process id in the box."),
            "started": TIME,
            "ended": or_null(TIME),
            "output_bytes": described(COUNT, "All bytes of output, of both streams."),
            "dropped_bytes": described(COUNT, "The oldest bytes, which are no longer stored."),
            "stdin_open": {"type": "boolean"},
            "keep_awake": {"type": "boolean"},
            "timeout_s": or_null(COUNT),
        },
    ),
    "CommandOutput": record(
        "Stored output of a background command. `next_offset` is the offset after it.",
        {
            "stdout": BASE64,
            "stderr": BASE64,
            "next_offset": COUNT,
            "dropped_bytes": described(
                COUNT, "Bytes between the requested offset and this output that are not stored."
            ),
            "state": {"type": "string", "enum": ["running", "exited"]},
            "exit_code": or_null(COUNT),
        },
    ),
    "CommandEvent": record(
        "One event of an output stream. `stdout` and `stderr` carry base64; `dropped` carries the"
        " JSON `{bytes}`. The `id` is the offset after the event. The last event is `exit` with the"
        " JSON `{code}`, or `failed` with `{error}` if the stream ends before the command.",
        {
            "event": {"type": "string", "enum": ["stdout", "stderr", "dropped", "exit", "failed"]},
            "data": TEXT,
            "id": TEXT,
        },
        "id",
    ),
    "Signal": _closed("A signal to send.", {"signal": {"type": "string", "enum": list(SIGNALS)}}),
    "FileEvent": record(
        "One event of a file watch. `change` carries the JSON `{path, kind, is_dir}`, and `from`,"
        " the former path, if the kind is `moved`. `overflow` says that changes were lost. The last"
        " event is `end` with the JSON `{reason}`, or `failed` with `{error}`.",
        {
            "event": {"type": "string", "enum": ["change", "overflow", "end", "failed"]},
            "data": TEXT,
        },
    ),
    "Entry": record(
        "A directory entry. If the name is not UTF-8, `name` contains U+FFFD, and `encoded_name`"
        " has the percent-encoded bytes, ready for use as the last segment of a URL.",
        {
            "name": TEXT,
            "encoded_name": _ENCODED,
            "is_dir": {"type": "boolean"},
            "size": COUNT,
            "mtime": TIME,
            "etag": described(or_null(TEXT), "The entity tag of a file; null: it has none."),
        },
        "encoded_name",
    ),
    "BoxDirectory": record(
        "A directory of a box with its entries, sorted by the bytes of their names.",
        {
            "path": TEXT,
            "encoded_path": _ENCODED,
            "entries": {
                "type": "array",
                "items": record(
                    "An entry of a directory of a box.",
                    {
                        "name": TEXT,
                        "encoded_name": _ENCODED,
                        "is_dir": {"type": "boolean"},
                        "size": COUNT,
                        "mtime": TIME,
                        "mode": described(TEXT, "The permissions, octal."),
                    },
                    "encoded_name",
                ),
            },
        },
        "encoded_path",
    ),
    "Directory": record(
        "A directory with its entries, sorted by the bytes of their names. If the path is not"
        " UTF-8, `path` contains U+FFFD, and `encoded_path` has the percent-encoded bytes.",
        {
            "dir": {"type": "boolean", "const": True},
            "path": TEXT,
            "encoded_path": _ENCODED,
            "entries": array("Entry"),
            "next": described(or_null(TEXT), "The cursor of the next page; null: the list ends."),
        },
        "encoded_path",
    ),
    "Removed": record(
        "A removed file or directory. A `path` or `name` that is not UTF-8 contains U+FFFD, and"
        " `encoded_path` or `encoded_name` has the percent-encoded bytes.",
        {
            "number": {"type": "integer", "minimum": 1},
            "path": described(
                or_null(TEXT),
                "The path on the drive before the removal; null: unknown, because a directory above"
                " it is no longer in the trash.",
            ),
            "encoded_path": _ENCODED,
            "name": TEXT,
            "encoded_name": _ENCODED,
            "is_dir": {"type": "boolean"},
            "is_link": described(
                {"type": "boolean"}, "The file had other names when this name was removed."
            ),
            "size": COUNT,
            "deleted": TIME,
        },
        "encoded_path",
        "encoded_name",
    ),
    "Trash": record(
        "One page of removed files and directories, the newest first.",
        {
            "entries": array("Removed"),
            "next": described(or_null(TEXT), "The cursor of the next page; null: the list ends."),
        },
    ),
    "Restored": record(
        "The result of a restore. Files are counted once for each name.",
        {
            "path": described(TEXT, "The path of the restored entry."),
            "encoded_path": _ENCODED,
            "files": COUNT,
            "directories": COUNT,
            "missing": {
                "type": "array",
                "items": record(
                    "An entry that stays in the trash, and the reason.",
                    {"path": TEXT, "encoded_path": _ENCODED, "reason": TEXT},
                    "encoded_path",
                ),
                "description": "At most 100 entries.",
            },
            "missing_count": described(COUNT, "The number of entries that stay in the trash."),
            "earlier_count": described(
                COUNT,
                "The number of further names of restored files that stay in the trash, because they"
                " were removed earlier than the directory.",
            ),
        },
        "encoded_path",
    ),
    "DriveSnapshot": record(
        "A read-only copy of a tree of a drive.",
        {
            "name": TEXT,
            "path": described(TEXT, "The path of the source at that time."),
            "encoded_path": _ENCODED,
            "created": TIME,
            "inodes": COUNT,
            "bytes": described(COUNT, "The size of its files, without holes."),
        },
        "encoded_path",
    ),
    "Copied": record(
        "The path of a copy.", {"path": TEXT, "encoded_path": _ENCODED}, "encoded_path"
    ),
    "Resize": record(
        "A text frame to a terminal; the service ignores other text frames.",
        {
            "resize": record(
                "The new size; values outside 1 to 1000 are clamped.",
                {"cols": {"type": "integer"}, "rows": {"type": "integer"}},
            )
        },
    ),
    "JsonRpc": {
        "type": "object",
        "description": "One JSON-RPC 2.0 message of the Model Context Protocol.",
        "properties": {"jsonrpc": {"type": "string", "const": "2.0"}},
        "required": ["jsonrpc"],
    },
    **ACCOUNT_SCHEMAS,
}
