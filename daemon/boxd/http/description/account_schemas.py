"""JSON schemas of the objects of an account: workspaces, profiles, secrets, keys, questions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from boxd.http.description.forms import COUNT, TEXT, TIME, described, or_null, record

if TYPE_CHECKING:
    from boxd.http.description.operation import Json

_SECONDS: Json = {"type": "number", "minimum": 0}
_FIGURE: Json = {"type": "number"}

_SHARE: dict[str, Json] = {
    "id": TEXT,
    "box": TEXT,
    "box_id": TEXT,
    "created": TIME,
    "expires": or_null(TIME),
    "last_used": or_null(TIME),
}

ACCOUNT_SCHEMAS: dict[str, Json] = {
    "Workspace": record(
        "A workspace.",
        {
            "name": described(or_null(TEXT), "Null: the default workspace."),
            "default": {"type": "boolean"},
            "boxes": COUNT,
            "bytes": described(COUNT, "Bytes on the drive."),
            "files": described(COUNT, "Files on the drive."),
            "profile": described(or_null(TEXT), "The profile of new boxes."),
            "created": or_null(TIME),
        },
    ),
    "Profile": record(
        "An image with default settings. Null: no default.",
        {
            "name": TEXT,
            "image": TEXT,
            "flavor": or_null(TEXT),
            "lifetime_s": or_null(_SECONDS),
            "deadline_s": or_null(_SECONDS),
            "egress": or_null(TEXT),
            "durable": {"type": "boolean"},
            "built_from": described(or_null(TEXT), "The snapshot that new boxes start from."),
        },
    ),
    "Secret": record(
        "A secret, without its value.",
        {
            "name": TEXT,
            "tier": {"type": "string", "enum": ["account", "workspace"]},
            "ws": or_null(TEXT),
            "updated": TIME,
        },
    ),
    "Key": record(
        "An API key, without the key itself.",
        {
            "name": TEXT,
            "scope": described(or_null(TEXT), "The workspace that confines it; null: none."),
            "created": TIME,
            "expires": or_null(TIME),
            "last_used": or_null(TIME),
        },
    ),
    "AccountKey": record(
        "An SSH key of the account.",
        {
            "name": TEXT,
            "fingerprint": TEXT,
            "first": described({"type": "boolean"}, "The key that names the account."),
            "public_key": described(or_null(TEXT), "Null: the service has not recorded it."),
            "added": described(or_null(TIME), "Null: the service has not recorded it."),
            "last_used": or_null(TIME),
        },
    ),
    "AccountName": record("The display name of the account.", {"name": or_null(TEXT)}),
    "Agent": record(
        "The program that runs tasks, without its token.",
        {
            "cmd": TEXT,
            "env": TEXT,
            "format": {"type": "string", "enum": ["text", "jsonl"]},
            "updated": TIME,
        },
    ),
    "Ask": record(
        "An open question.",
        {
            "id": TEXT,
            "box": described(or_null(TEXT), "The box that asked; null: none, or it is removed."),
            "workspace": or_null(TEXT),
            "question": TEXT,
            "options": {"type": "array", "items": TEXT},
            "state": TEXT,
            "created": TIME,
        },
    ),
    "AskResult": record(
        "The state of a question. `answer` is present once the question is answered.",
        {
            "id": TEXT,
            "state": {"type": "string", "enum": ["open", "answered", "expired"]},
            "answer": TEXT,
        },
        "answer",
    ),
    "Identity": record(
        "The identity of a caller.",
        {
            "fingerprint": described(TEXT, "The first SSH key, which names the account."),
            "key": described(or_null(TEXT), "The SSH key of a login; null over HTTP."),
            "name": described(or_null(TEXT), "The display name; null: none."),
            "tier": TEXT,
            "boxes": COUNT,
            "workspaces": {"type": "array", "items": TEXT},
            "workspaces_with_boxes": {"type": "array", "items": TEXT},
            "api_keys": described(or_null(COUNT), "Null: the key is confined to a workspace."),
            "scope": described(or_null(TEXT), "The workspace that confines the key; null: none."),
        },
    ),
    "Stat": record(
        "One figure. `used` null: unknown. `limit` null: no limit.",
        {
            "what": TEXT,
            "unit": described(TEXT, "`bytes`, `s`, `%`, or empty for a number of objects."),
            "used": or_null(_FIGURE),
            "limit": or_null(_FIGURE),
            "of": described(TEXT, "Tells several figures of one kind apart."),
        },
        "of",
    ),
    "Port": record(
        "A port on which a program in a box listens.",
        {
            "port": {"type": "integer", "minimum": 1, "maximum": 65535},
            "address": described(TEXT, "The address of the program; `0.0.0.0` and `::`: all."),
            "path": described(
                or_null(TEXT), "The preview below the address of the API; null: not reachable."
            ),
            "url": described(or_null(TEXT), "The URL of the preview; null: there is none."),
        },
    ),
    "Snapshot": record(
        "A snapshot of a box.",
        {
            "snapshot": described(TEXT, "The name."),
            "box": TEXT,
            "workspace": TEXT,
            "memory": described({"type": "boolean"}, "Processes continue from the snapshot."),
            "image": TEXT,
            "flavor": TEXT,
            "size_bytes": COUNT,
            "created": TIME,
            "box_removed": {"type": "boolean"},
        },
        "workspace",
    ),
    "Share": record("A share of a box, without its token.", _SHARE),
    "NewShare": record(
        "A new share.",
        {**_SHARE, "token": described(TEXT, "The SSH user name; only this response has it.")},
    ),
}
