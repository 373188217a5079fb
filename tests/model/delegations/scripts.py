"""What the clients of a `DelegationWorld` do: its arguments by name, and such that chance makes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.model.lease_mount import HTTP, D, E, F, Op
from wrkfs.types import ROOT_INO

if TYPE_CHECKING:
    import random

KNOWN: list[tuple[int, Op]] = [(1, ("list", D)), (1, ("stat", F))]
"""Client 1 has a lease on D and knows all of it."""
HELD: list[tuple[int, Op]] = [*KNOWN, (1, ("chmod", F, 0o600)), (1, ("fsync",))]
"""Client 1 has the delegation of D."""
BOTH: list[tuple[int, Op]] = [
    *HELD,
    (2, ("list", E)),
    (2, ("stat", E)),
    (2, ("create", E, b"x")),
    (2, ("fsync",)),
]
"""Client 1 has the delegation of D, client 2 that of E."""
MAKE: Op = ("create", D, b"g")
LOOK: Op = ("look", D, b"g")

SMALL: dict[str, dict[str, Any]] = {
    "grant": {"programs": [(1, [MAKE]), (HTTP, [LOOK])], "warm": KNOWN},
    "mkdir": {"programs": [(1, [("mkdir", E, b"n")]), (HTTP, [("list_in", E, b"n")])]},
    "look": {"programs": [(1, [MAKE, ("chmod", F, 0o640)]), (HTTP, [LOOK])], "warm": HELD},
    "list": {"programs": [(1, [MAKE]), (2, [("list", D)])], "warm": HELD},
    "rmdir": {
        "programs": [(1, [MAKE]), (HTTP, [("rmdir", ROOT_INO, b"e"), LOOK])],
        "warm": HELD,
    },
    "tree": {
        "programs": [(1, [("mkdir", D, b"n")]), (HTTP, [("list_in", D, b"n")])],
        "warm": HELD,
    },
    "repeat": {
        "programs": [(1, [MAKE, ("fsync",)]), (0, [("repeat", 1)])],
        "warm": HELD,
    },
    "fsync": {"programs": [(1, [MAKE, ("fsync",)]), (HTTP, [LOOK])], "warm": HELD},
    "kill": {"programs": [(1, [MAKE]), (0, [("kill", 1)]), (3, [])], "warm": HELD},
    "kill-look": {"programs": [(1, [MAKE]), (0, [("kill", 1)]), (HTTP, [LOOK])], "warm": HELD},
    "kill-two": {"programs": [(1, [MAKE]), (0, [("kill", 1)]), (3, []), (4, [])], "warm": HELD},
    "freeze": {"programs": [(1, [MAKE, LOOK]), (0, [("freeze", 1)])], "warm": HELD},
    "freeze-fsync": {"programs": [(1, [MAKE, ("fsync",)]), (0, [("freeze", 1)])], "warm": HELD},
    "crash": {"programs": [(1, [MAKE]), (0, [("crash",)])], "warm": HELD},
}
"""Explored to the end in CI, too."""

SCRIPTS: dict[str, dict[str, Any]] = {
    "replace": {
        "programs": [
            (1, [("create", D, b"t"), ("rename", D, b"t", D, b"f")]),
            (HTTP, [("look", D, b"f")]),
        ],
        "warm": HELD,
    },
    "wait": {
        "programs": [(1, [MAKE]), (HTTP, [("look", D, b"f")]), (0, [("wait",)])],
        "warm": HELD,
    },
    # Grants beside other sessions.
    # Found: attributes read beside a grant were cached, and the holder changed them.
    "grant-stat": {
        "programs": [
            (1, [("chmod", F, 0o600)]),
            (2, [("look", D, b"f"), ("stat", F), ("stat", F)]),
        ],
        "warm": KNOWN,
    },
    "grant-twice": {
        "programs": [(1, [MAKE]), (2, [("create", D, b"h")])],
        "warm": [*KNOWN, (2, ("list", D))],
    },
    "grant-change": {
        "programs": [(1, [MAKE]), (HTTP, [("unlink", D, b"f")])],
        "warm": KNOWN,
    },
    # Found: a recall before the answer of mkdir did not end the delegation.
    "mkdir-look": {
        "programs": [
            (1, [("mkdir", E, b"n"), ("create_in", E, b"n", b"x")]),
            (HTTP, [("list_in", E, b"n")]),
        ],
    },
    # Recalls of what was decided.
    "held-read": {
        "programs": [(1, [MAKE, ("unlink", D, b"f")]), (2, [("list", D), LOOK])],
        "warm": HELD,
    },
    "held-change": {
        "programs": [(1, [MAKE, ("unlink", D, b"g")]), (2, [("create", D, b"g"), LOOK])],
        "warm": HELD,
    },
    "held-rename": {
        "programs": [
            (1, [("create", D, b"t"), ("rename", D, b"t", D, b"f")]),
            (HTTP, [("look", D, b"f"), ("look", D, b"t")]),
        ],
        "warm": HELD,
    },
    "held-write": {
        "programs": [(1, [("write", F), ("fsync",)]), (2, [("stat", F), ("write", F)])],
        "warm": HELD,
    },
    # Found: a delegation was asked for while a batch gave it back, and ended with the batch.
    "tree-look": {
        "programs": [
            (1, [("mkdir", D, b"n"), ("create_in", D, b"n", b"x")]),
            (HTTP, [("list_in", D, b"n")]),
        ],
        "warm": HELD,
    },
    "tree-remove": {
        "programs": [
            (1, [("mkdir", D, b"n"), ("rmdir", D, b"n"), ("mkdir", D, b"n")]),
            (2, [("look", D, b"n"), ("list_in", D, b"n")]),
        ],
        "warm": HELD,
    },
    "asked-again": {
        "programs": [(1, [MAKE, ("create", D, b"h")]), (HTTP, [LOOK]), (0, [("wait",)])],
        "warm": HELD,
    },
    # Two holders that need each other's directories.
    "cycle": {
        "programs": [
            (1, [MAKE, ("rename", D, b"g", E, b"y")]),
            (2, [("create", E, b"h"), ("rename", E, b"h", D, b"z")]),
        ],
        "warm": BOTH,
    },
    "cross-look": {
        "programs": [(1, [MAKE, ("look", E, b"h")]), (2, [("create", E, b"h"), LOOK])],
        "warm": BOTH,
    },
    # The cache knows an inode, but not its name. A commit waits for no lock of the kernel.
    "unnamed": {
        "programs": [(1, [("unlink", D, b"f")]), (1, [("write", F), ("fsync",)])],
        "warm": [
            (1, ("look", D, b"h")),
            (1, ("stat", F)),
            (1, ("create", D, b"h")),
            (1, ("fsync",)),
        ],
    },
    # Batches whose answer is lost.
    "repeat-write": {
        "programs": [(1, [("write", F), ("fsync",)]), (HTTP, [("write", F)]), (0, [("repeat", 1)])],
        "warm": HELD,
    },
    "fsync-race": {
        "programs": [(1, [MAKE, ("fsync",), ("create", D, b"h")]), (HTTP, [LOOK])],
        "warm": HELD,
    },
    # The holder dies.
    "kill-replay": {
        "programs": [
            (1, [MAKE, ("create", D, b"h")]),
            (0, [("kill", 1)]),
            (3, [LOOK, ("look", D, b"h")]),
        ],
        "warm": HELD,
    },
    "kill-wait": {
        "programs": [(1, [MAKE]), (0, [("kill", 1)]), (2, [LOOK])],
        "warm": HELD,
    },
    "kill-race": {
        "programs": [(1, [MAKE]), (0, [("kill", 1)]), (2, [LOOK]), (3, [LOOK])],
        "warm": HELD,
    },
    # Found: a mount fenced a dead session whose journal another one replayed.
    "kill-again": {
        "programs": [(1, [MAKE]), (0, [("kill", 1), ("kill", 3)]), (3, []), (4, [LOOK])],
        "warm": HELD,
    },
    "kill-late": {
        "programs": [(1, [MAKE]), (0, [("kill", 1)]), (HTTP, [LOOK, ("unlink", D, b"g")])],
        "warm": HELD,
    },
    # The holder expires.
    "freeze-race": {
        "programs": [
            (1, [MAKE, ("look", D, b"h"), ("fsync",)]),
            (HTTP, [LOOK, ("create", D, b"h")]),
            (0, [("freeze", 1)]),
        ],
        "warm": HELD,
    },
    "freeze-beat": {
        "programs": [
            (1, [MAKE, ("beat",), LOOK]),
            (HTTP, [("chmod", D, 0o700)]),
            (0, [("freeze", 1)]),
        ],
        "warm": HELD,
    },
    "freeze-elsewhere": {
        "programs": [
            (1, [MAKE]),
            (2, [("create", E, b"x")]),
            (HTTP, [("mkdir", D, b"n")]),
            (0, [("freeze", 1)]),
            (1, [("beat",)]),
        ],
        "warm": [*KNOWN, (1, ("list", E))],
    },
    # The database dies.
    "crash-race": {
        "programs": [(1, [MAKE, ("fsync",)]), (HTTP, [LOOK]), (0, [("crash",)])],
        "warm": HELD,
    },
    "crash-grant": {
        "programs": [(1, [MAKE]), (HTTP, [LOOK]), (0, [("crash",)])],
        "warm": KNOWN,
    },
    "crash-tree": {
        "programs": [
            (1, [("mkdir", D, b"n"), ("create_in", D, b"n", b"x")]),
            (2, [("list_in", D, b"n")]),
            (0, [("crash",)]),
        ],
        "warm": HELD,
    },
    "crash-kill": {
        "programs": [(1, [MAKE]), (0, [("crash",), ("kill", 1)]), (3, [LOOK])],
        "warm": HELD,
    },
}

OPS: tuple[Op, ...] = (
    ("look", D, b"f"), ("look", D, b"g"), ("look", E, b"g"), ("stat", F), ("stat", D), ("list", D),
    ("list", E), ("list", ROOT_INO), ("create", D, b"g"), ("create", D, b"h"), ("create", E, b"g"),
    ("unlink", D, b"f"), ("unlink", D, b"g"), ("chmod", F, 0o600), ("chmod", D, 0o700),
    ("write", F), ("rename", D, b"f", E, b"g"), ("rename", D, b"g", D, b"f"), ("mkdir", D, b"n"),
    ("rmdir", D, b"n"), ("create_in", D, b"n", b"x"), ("list_in", D, b"n"), ("mkdir", E, b"n"),
    ("rmdir", ROOT_INO, b"e"), ("fsync",),
)  # fmt: skip


def generated(chance: random.Random) -> dict[str, Any]:
    """Programs of a few calls on all clients, after a few others, and what happens to them."""
    clients = [1, 2, HTTP, *chance.choices((1, 2, HTTP), k=chance.randrange(2))]
    programs: list[tuple[int, list[Op]]] = [
        (one, _calls(one, chance, chance.randrange(1, 4))) for one in clients
    ]
    event = chance.choice(("", "", "wait", "freeze", "repeat", "kill", "crash"))
    if event in ("wait", "crash"):
        programs.append((0, [(event,)]))
    elif event:
        programs.append((0, [(event, 1)]))
    if event == "kill":
        programs += [(new, _calls(new, chance, 2)) for new in (3, 4)[: chance.randrange(3)]]
    before = [chance.choice((1, 1, 2)) for _ in range(chance.randrange(5))]
    warm = [(one, chance.choice(OPS)) for one in before]
    start = chance.choice((list[tuple[int, Op]](), KNOWN, HELD, HELD, BOTH))
    return {"programs": programs, "warm": [*start, *warm]}


def _calls(client: int, chance: random.Random, count: int) -> list[Op]:
    calls = chance.choices(OPS, k=count)
    return [("stat", D) if client == HTTP and op == ("fsync",) else op for op in calls]
