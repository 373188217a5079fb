"""The values that the API sends and takes, as JSON schemas."""

from __future__ import annotations

from boxd.api.described.parts import NAME, Json, array, ref
from boxd.boxes.exec import MAX_TIMEOUT_S
from boxd.model.box import BoxState

TEXT: Json = {"type": "string"}
COUNT: Json = {"type": "integer", "minimum": 0}
TIME: Json = {"type": "string", "format": "date-time"}
BASE64: Json = {"type": "string", "contentEncoding": "base64"}


def _object(about: str, fields: dict[str, Json], *optional: str) -> Json:
    """An object whose fields are all there, but for the `optional` ones."""
    required = [name for name in fields if name not in optional]
    return {"type": "object", "description": about, "properties": fields, "required": required}


def _or_null(schema: Json) -> Json:
    return {"anyOf": [schema, {"type": "null"}]}


def _told(schema: Json, about: str) -> Json:
    return {**schema, "description": about}


_STATE = _told({"type": "string", "enum": [state.value for state in BoxState]}, "As in `ls`.")
_BOX: dict[str, Json] = {
    "id": {"type": "string", "pattern": "^[0-9a-f]{32}$"},
    "name": {"type": "string", "pattern": NAME},
    "workspace": _told({"type": "string"}, "Left out in the default workspace."),
    "image": TEXT,
    "state": _STATE,
    "age_s": {"type": "number", "minimum": 0},
    "cpus": {"type": "number", "exclusiveMinimum": 0},
    "mem_mb": COUNT,
    "ref": _told(TEXT, "`name`, or `workspace/name`: what addresses it."),
    "flavor": TEXT,
    "detail": _told(TEXT, "How it came into its state; often empty."),
    "attached": _told(COUNT, "How many hold it awake."),
    "why": {"type": "object", "additionalProperties": COUNT, "description": "For what, how often."},
    "created": TIME,
    "deadline": _told(_or_null(TIME), "It is removed then, whatever goes on."),
    "grace_s": _told(_or_null({"type": "number"}), "How long it stays awake when all have left."),
    "clamped": _told({"type": "boolean"}, "Its deadline is shorter than was asked for."),
    "next": _told(_or_null(ref("NextAct")), "What happens to it next by itself."),
    "memory": _told({"type": "boolean"}, "It sleeps with its memory."),
    "durable": {"type": "boolean"},
    "auto_suspend": {"type": "boolean"},
    "pinned_until": _or_null(TIME),
    "pin_why": TEXT,
    "egress": _told(TEXT, "`all`, `none`, or a list of names and networks."),
    "disk_mb": _told(COUNT, "0: no cap."),
    "pids": COUNT,
    "drive": _told({"type": "boolean"}, "/wrk is mounted in it."),
    "confidential": {"type": "boolean"},
    "usage": _told(_or_null(ref("Usage")), "As measured last."),
}

SCHEMAS: dict[str, Json] = {
    "Error": _object(
        "What every failure is: what happened, to what, and what to do next.",
        {"error": TEXT},
    ),
    "Ok": _object("It is so.", {"ok": {"type": "boolean", "const": True}}),
    "Box": _object("One box.", _BOX, "workspace"),
    "BoxState": _object("The state that a box is in now.", {"state": _STATE}),
    "NextAct": _object(
        "What will happen by itself.",
        {"act": {"type": "string", "enum": ["removed", "suspended"]}, "at": TIME},
    ),
    "Usage": _object(
        "What a box used of its host.",
        {
            "at": TIME,
            "cpu_s": {"type": "number"},
            "cpu_share": _or_null({"type": "number"}),
            "memory_bytes": COUNT,
            "disk_bytes": COUNT,
            "pids": COUNT,
            "net_rx_bytes": COUNT,
            "net_tx_bytes": COUNT,
        },
    ),
    "Image": _object(
        "What a box can start from.",
        {"name": TEXT, "description": TEXT, "built": {"type": "boolean"}},
    ),
    "Flavor": _object(
        "Caps of a box.",
        {
            "name": TEXT,
            "description": TEXT,
            "cpus": {"type": "number", "exclusiveMinimum": 0},
            "mem_mb": COUNT,
        },
    ),
    "Canvas": _object(
        "A document that a program rendered, without its content.",
        {
            "id": {"type": "string", "pattern": "^[a-z0-9-]{1,64}$"},
            "title": TEXT,
            "mime": TEXT,
            "size": COUNT,
            "revision": {"type": "integer", "minimum": 1},
            "scope": _or_null(TEXT),
            "updated": TIME,
            "expires": _or_null(TIME),
            "uri": TEXT,
        },
    ),
    "ExecHeader": _object(
        "The first line of an exec body.",
        {
            "cmd": _told({"type": "string", "minLength": 1}, "Run by the login shell of the box."),
            "env": {
                "type": "object",
                "propertyNames": {"pattern": "^[A-Za-z_][A-Za-z0-9_]*$"},
                "additionalProperties": TEXT,
                "maxProperties": 256,
            },
            "timeout_s": {
                "type": "integer",
                "minimum": 1,
                "maximum": MAX_TIMEOUT_S,
                "default": 300,
            },
        },
        *("env", "timeout_s"),
    ),
    "ExecEvent": _object(
        "`stdout` and `stderr` with base64, and at the end `exit` with the JSON `{code}`.",
        {"event": {"type": "string", "enum": ["stdout", "stderr", "exit"]}, "data": TEXT},
    ),
    "Event": _object("A message as an event.", {"event": TEXT, "data": TEXT}, "event"),
    "ExecResult": _object(
        "How a command ended. A timeout is 124, a signal 128 and its number.",
        {"exit_code": COUNT, "stdout": BASE64, "stderr": BASE64, "duration_ms": COUNT},
    ),
    "Entry": _object(
        "A name in a directory.", {"name": TEXT, "is_dir": {"type": "boolean"}, "size": COUNT}
    ),
    "Directory": _object(
        "A directory, its entries sorted by name. Names that are no UTF-8 have surrogate escapes.",
        {"dir": {"type": "boolean", "const": True}, "path": TEXT, "entries": array("Entry")},
    ),
    "Resize": _object(
        "A text frame to a terminal; other texts are ignored.",
        {
            "resize": _object(
                "1 to 1000 each; more is clamped.",
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
}
