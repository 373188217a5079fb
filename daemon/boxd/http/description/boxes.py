"""Parameters and examples that the descriptions of several box routes use."""

from __future__ import annotations

from boxd.http.description.operation import REFERENCE, Json, path

REF = path(
    "ref",
    "A box by its name, by `workspace%2Fname`, by its id or by a prefix of its id.",
    "web",
    pattern=REFERENCE,
)
BOX: Json = {
    "id": "0f3a41c2d5e6978811223344556677ff",
    "name": "web",
    "image": "debian",
    "state": "running",
    "age_s": 12.5,
    "cpus": 1.0,
    "mem_mb": 512,
    "ref": "web",
    "flavor": "small",
    "profile": None,
    "detail": "",
    "attached": 1,
    "why": {"shell": 1},
    "created": "2026-01-02T03:04:05+00:00",
    "deadline": None,
    "grace_s": None,
    "clamped": False,
    "next": None,
    "removal": None,
    "memory": False,
    "durable": False,
    "auto_suspend": True,
    "pinned_until": None,
    "pin_why": "",
    "egress": "all",
    "disk_mb": 32768,
    "pids": 512,
    "drive": True,
    "confidential": False,
    "runtime": "",
    "containers": False,
    "no_suspend": "",
    "usage": None,
}
"""A box as the API returns it."""
MADE_BOX: Json = {**BOX, "notes": []}
"""A box as the routes that create boxes return it."""
SNAPSHOT: Json = {
    "snapshot": "before-upgrade",
    "box": "web",
    "memory": True,
    "image": "debian",
    "flavor": "small",
    "size_bytes": 1048576,
    "created": "2026-01-02T03:04:05+00:00",
    "box_removed": False,
}
SHARE: Json = {
    "id": "5e1c41c2d5e6978811223344556677aa",
    "box": "web",
    "box_id": "0f3a41c2d5e6978811223344556677ff",
    "created": "2026-01-02T03:04:05+00:00",
    "expires": None,
    "last_used": None,
}
