"""What the clients of a `LeaseWorld` do: its arguments by name, and such that chance makes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.model.lease_mount import HTTP, D, E, F, Op
from wrkfs.types import ROOT_INO, Ino

if TYPE_CHECKING:
    import random

WARM = [(1, ("list", D)), (1, ("stat", D)), (2, ("list", D)), (2, ("stat", F))]
OPENED = [(1, ("list", D)), (1, ("stat", F)), (1, ("open", F)), (1, ("close", F))]
OPEN = [*OPENED, (1, ("open", F))]
LOOK: Op = ("look", D, b"f")

WALK: list[tuple[int, Op]] = [(1, ("list", ROOT_INO)), (1, ("list", D)), (1, ("list", E))]

SCRIPTS: dict[str, dict[str, Any]] = {
    # Questions that take leases, beside a change.
    "look-unlink": {"programs": [(1, [LOOK]), (2, [("unlink", D, b"f"), LOOK])]},
    "look-twice-unlink": {"programs": [(1, [LOOK, LOOK]), (HTTP, [("unlink", D, b"f")])]},
    "absent-create": {
        "programs": [(1, [("look", D, b"g"), ("look", D, b"g")]), (HTTP, [("create", D, b"g")])]
    },
    "list-create": {"programs": [(1, [("list", D), ("list", D)]), (HTTP, [("create", D, b"g")])]},
    "stat-chmod": {
        "programs": [(1, [("stat", D), LOOK, ("stat", F)]), (HTTP, [("chmod", F, 0o600)])]
    },
    "stat-write": {"programs": [(1, [LOOK, ("stat", F)]), (HTTP, [("write", F)])]},
    # Warm clients.
    "warm-unlink": {
        "programs": [(1, [LOOK, ("stat", F)]), (2, [("unlink", D, b"f"), LOOK])],
        "warm": WARM,
    },
    "warm-create": {
        "programs": [(1, [("look", D, b"g"), ("list", D)]), (2, [("create", D, b"g")])],
        "warm": WARM,
    },
    "both-create": {
        "programs": [(1, [("create", D, b"g")]), (2, [("create", D, b"g"), ("list", D)])],
        "warm": WARM,
    },
    "both-chmod": {
        "programs": [(1, [("chmod", F, 0o600), ("stat", F)]), (2, [("chmod", F, 0o640)])],
        "warm": WARM,
    },
    "own-change-beside-questions": {
        "programs": [
            (1, [("unlink", D, b"f"), ("stat", D)]),
            (1, [LOOK, LOOK]),
            (HTTP, [("chmod", D, 0o700)]),
        ],
        "warm": WARM[:2],
    },
    "own-unlink-beside-look": {
        "programs": [(1, [("unlink", D, b"f")]), (1, [LOOK, LOOK])],
        "warm": [(1, ("stat", D))],
    },
    "two-own-changes": {
        "programs": [
            (1, [("chmod", F, 0o600), ("stat", F)]),
            (1, [("chmod", F, 0o640), ("stat", F)]),
        ],
        "warm": [*WARM, (1, ("stat", F))],
    },
    "create-and-remove": {
        "programs": [(1, [("create", D, b"g")]), (1, [("unlink", D, b"g"), ("look", D, b"g")])],
        "warm": WARM,
    },
    "mkdir": {
        "programs": [
            (1, [("mkdir", E, b"n"), ("look", Ino(5), b"x")]),
            (HTTP, [("look", E, b"n"), ("create", Ino(5), b"x")]),
        ],
    },
    "rmdir": {
        "programs": [(1, [("look", E, b"x"), ("stat", E)]), (2, [("rmdir", ROOT_INO, b"e")])],
        "warm": [(1, ("list", E)), (1, ("stat", E)), (2, ("list", ROOT_INO))],
    },
    "rename-away": {
        "programs": [
            (1, [LOOK, ("look", E, b"h")]),
            (2, [("rename", D, b"f", E, b"h"), ("look", E, b"h")]),
        ],
        "warm": [*WARM, (1, ("look", E, b"h"))],
    },
    "rename-then-chmod": {
        "programs": [
            (1, [("rename", D, b"f", E, b"h"), ("stat", F), ("stat", F)]),
            (HTTP, [("chmod", F, 0o600)]),
        ],
        "warm": [(1, ("list", D)), (1, ("stat", F))],
    },
    "link": {
        "programs": [
            (1, [("stat", F), ("stat", F)]),
            (2, [("link", F, E, b"h"), ("chmod", F, 0o600)]),
        ],
        "warm": WARM,
    },
    "own-link": {
        "programs": [(1, [("link", F, E, b"h"), ("stat", F)]), (HTTP, [("chmod", F, 0o600)])],
        "warm": OPENED,
    },
    # Files open without telling.
    "open-unlink": {
        "programs": [(1, [("open", F), ("close", F)]), (2, [("unlink", D, b"f")])],
        "warm": OPENED,
    },
    "open-own-unlink": {
        "programs": [(1, [("open", F), ("close", F)]), (1, [("unlink", D, b"f")])],
        "warm": OPENED,
    },
    "open-replaced": {
        "programs": [(1, [("open", F), ("close", F)]), (HTTP, [("rename", E, b"x", D, b"f")])],
        "warm": [*OPENED, (HTTP, ("create", E, b"x"))],
    },
    # Found: the answer of an own change was kept by a lease that came after the change.
    "lease-after-own-change": {
        "programs": [
            (1, [("chmod", F, 0o600)]),
            (1, [("stat", D), ("stat", F)]),
            (HTTP, [("chmod", F, 0o640)]),
        ],
    },
    # Found: an answer from before the file's end was kept, when its name was not known.
    "chmod-beside-unknown-unlink": {
        "programs": [(1, [("chmod", F, 0o600)]), (1, [("unlink", D, b"f"), ("stat", F)])],
        "warm": [(1, ("stat", D)), (1, ("stat", F))],
    },
    # Found: what an own rename, or link, takes from under a lease was relied on until its answer.
    "rename-beside-chmod": {
        "programs": [
            (1, [("rename", D, b"f", E, b"h")]),
            (1, [("stat", F)]),
            (HTTP, [("chmod", F, 0o600)]),
        ],
        "warm": [(1, ("list", D)), (1, ("stat", F))],
    },
    "link-beside-chmod": {
        "programs": [
            (1, [("link", F, E, b"h")]),
            (1, [("stat", F)]),
            (HTTP, [("chmod", F, 0o600)]),
        ],
        "warm": OPENED,
    },
    "unknown-rename-beside-chmod": {
        "programs": [
            (1, [("rename", D, b"f", E, b"h")]),
            (1, [("stat", F)]),
            (HTTP, [("chmod", F, 0o600)]),
        ],
        "warm": [(1, ("stat", D)), (1, ("stat", F))],
    },
    "open-own-link-unlink": {
        "programs": [
            (1, [("link", F, E, b"h"), ("unlink", D, b"f")]),
            (HTTP, [("unlink", E, b"h")]),
        ],
        "warm": OPEN,
    },
    # Found: attributes that own changes had made unknown took the open file with them.
    "open-unknown-unlink": {
        "programs": [
            (1, [("chmod", F, 0o600)]),
            (1, [("chmod", F, 0o640)]),
            (HTTP, [("unlink", D, b"f")]),
        ],
        "warm": OPEN,
    },
    # Found: who was recalled once more gave back before the first recall was done.
    "recalled-again": {
        "programs": [(1, [("close", F)]), (HTTP, [("unlink", D, b"f")])],
        "warm": OPEN,
        "impatience": 1,
    },
    # Found: a lease taken anew while the last one was given back, and went with it.
    "no-room": {
        "programs": [(1, [("look", E, b"x"), LOOK]), (HTTP, [("unlink", D, b"f")])],
        "warm": WARM[:1],
        "room": 7,
    },
    "taken-while-given-back": {
        "programs": [
            (1, [LOOK]),
            (1, [("look", D, b"g")]),
            (HTTP, [("create", D, b"g")]),
            (0, [("pause",)]),
        ],
    },
    # Found: a lease that was recalled before its answer counted, when that took a second.
    "recalled-before-answered": {
        "programs": [
            (1, [LOOK]),
            (1, [("list", D)]),
            (HTTP, [("chmod", D, 0o700)]),
            (0, [("pause",)]),
        ],
    },
    # Found: changes of which nobody knows whether they were made, and which were made later.
    "cut-chmod": {
        "programs": [
            (1, [("chmod", F, 0o600), ("stat", F), ("stat", F)]),
            (1, [LOOK]),
            (0, [("cut", 1)]),
        ],
        "warm": WARM,
    },
    "cut-cold-chmod": {
        "programs": [(1, [("chmod", F, 0o600), LOOK, LOOK]), (0, [("cut", 1)])],
    },
    "cut-unlink": {
        "programs": [(1, [("unlink", D, b"f"), LOOK, ("list", D)]), (0, [("cut", 1)])],
        "warm": WARM,
    },
    "cut-unknown-rename": {
        "programs": [
            (1, [("rename", ROOT_INO, b"e", D, b"e"), ("stat", E), ("list", D)]),
            (0, [("cut", 1)]),
        ],
        "warm": [(1, ("list", E)), (1, ("stat", E)), (1, ("look", D, b"f"))],
    },
    "cut-mkdir": {
        "programs": [
            (1, [("mkdir", E, b"n"), ("list", E), ("stat", E)]),
            (HTTP, [("chmod", E, 0o700)]),
            (0, [("cut", 1)]),
        ],
        "warm": [(1, ("list", E)), (1, ("stat", E))],
        "voids": True,
    },
    # Walks: the listing of D leases E ahead, and the next call reads E.
    "walk-create": {
        "programs": [(1, [op for _, op in WALK]), (HTTP, [("create", E, b"g"), ("look", E, b"g")])],
    },
    "walk-unlink": {
        "programs": [(1, [("list", D), ("list", E), LOOK]), (HTTP, [("unlink", D, b"f")])],
        "warm": [(1, ("list", ROOT_INO))],
    },
    "walk-chmod": {
        "programs": [(1, [("stat", E), ("stat", E)]), (HTTP, [("chmod", E, 0o700)])],
        "warm": WALK[:2],
    },
    "walk-chmod-early": {
        "programs": [
            (1, [("list", D), ("stat", E), ("stat", E)]),
            (HTTP, [("chmod", E, 0o700)]),
            (0, [("pause",)]),
        ],
        "warm": [(1, ("list", ROOT_INO))],
    },
    "walk-rmdir": {
        "programs": [
            (1, [("list", D), ("list", E), ("look", ROOT_INO, b"e")]),
            (2, [("rmdir", ROOT_INO, b"e")]),
        ],
        "warm": [(1, ("list", ROOT_INO))],
    },
    "walk-rename": {
        "programs": [
            (1, [("list", D), ("list", E), ("list", D)]),
            (2, [("rename", D, b"f", E, b"g"), ("list", E)]),
        ],
        "warm": [(1, ("list", ROOT_INO))],
    },
    "walk-beside-own-changes": {
        "programs": [
            (1, [("list", D), ("list", E)]),
            (1, [("create", E, b"g"), ("look", E, b"g")]),
            (HTTP, [("chmod", E, 0o700)]),
        ],
        "warm": [(1, ("list", ROOT_INO))],
    },
    "walk-beside-own-rmdir": {
        "programs": [
            (1, [("list", D), ("list", E)]),
            (1, [("rmdir", ROOT_INO, b"e"), ("look", ROOT_INO, b"e")]),
            (HTTP, [("mkdir", ROOT_INO, b"e")]),
        ],
        "warm": [(1, ("list", ROOT_INO))],
    },
    "walk-beside-lookups": {
        "programs": [
            (1, [("list", D)]),
            (1, [("look", E, b"x"), ("look", E, b"x")]),
            (HTTP, [("create", E, b"x")]),
            (0, [("pause",)]),
        ],
        "warm": [(1, ("list", ROOT_INO))],
    },
    "walk-no-room": {
        "programs": [(1, [("list", D), ("list", E), LOOK]), (HTTP, [("create", E, b"g")])],
        "warm": [(1, ("list", ROOT_INO))],
        "room": 10,
    },
    "walk-frozen": {
        "programs": [
            (1, [("list", D), ("list", E), ("list", E)]),
            (HTTP, [("create", E, b"g")]),
            (0, [("freeze", 1)]),
            (1, [("beat",)]),
        ],
        "warm": [(1, ("list", ROOT_INO))],
        "voids": True,
    },
    "walk-cut": {
        "programs": [
            (1, [("list", D), ("list", E)]),
            (1, [("chmod", E, 0o700)]),
            (0, [("cut", 1)]),
        ],
        "warm": [(1, ("list", ROOT_INO))],
        "voids": True,
    },
    # Sessions that expire.
    "frozen": {
        "programs": [
            (1, [LOOK, LOOK]),
            (HTTP, [("unlink", D, b"f")]),
            (0, [("freeze", 1)]),
            (1, [("beat",)]),
        ],
        "warm": WARM[:2],
        "voids": True,
    },
    "frozen-cold": {
        "programs": [(1, [LOOK]), (HTTP, [("unlink", D, b"f")]), (0, [("freeze", 1)])],
        "voids": True,
    },
}

OPS: tuple[Op, ...] = (
    LOOK, LOOK, ("stat", F), ("stat", D), ("list", D), ("look", D, b"g"), ("look", E, b"g"),
    ("create", D, b"g"), ("unlink", D, b"f"), ("unlink", D, b"g"), ("chmod", F, 0o600),
    ("chmod", D, 0o700), ("write", F), ("rename", D, b"f", E, b"g"), ("rename", D, b"f", D, b"g"),
    ("link", F, E, b"g"), ("mkdir", E, b"n"), ("rmdir", ROOT_INO, b"e"), ("open", F), ("close", F),
    ("list", ROOT_INO), ("list", E), ("stat", E),
)  # fmt: skip


def generated(chance: random.Random) -> dict[str, Any]:
    """Programs of a few calls on all clients, after a few others."""
    clients = [1, 2, HTTP, *chance.choices((1, 2, HTTP), k=chance.randrange(2))]
    programs = [(one, chance.choices(OPS, k=chance.randrange(1, 4))) for one in clients]
    if chance.random() < 0.3:
        programs.append((0, [("pause",)]))
    cuts = chance.random() < 0.2
    if cuts:
        programs.append((0, [("cut", chance.choice((1, 2)))]))
    warm = [(chance.choice((1, 2)), chance.choice(OPS)) for _ in range(chance.randrange(5))]
    room = chance.choice((0, 0, 0, 5, 10))
    found = {"programs": programs, "warm": warm, "impatience": chance.randrange(2), "room": room}
    return {**found, "voids": True} if cuts else found  # the lease of a directory may be unknown
