"""Random sequences of calls for the differential test of write delegations."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

WEIGHTS = {
    "create": 12, "mkdir": 9, "mknod": 3, "symlink": 4, "link": 4, "unlink": 9, "rmdir": 6,
    "remove_tree": 1, "rename": 14, "setattr": 9, "resize": 4, "touch": 3, "open": 6, "release": 9,
    "commit": 12, "allocate": 1, "copy_range": 1, "setxattr": 3, "removexattr": 1, "xattrs": 3,
    "lookup": 6, "readdir": 9, "getattr": 4, "parent": 1, "readlink": 1, "content": 5,
    "statfs": 1, "hide": 1, "publish": 2, "restore": 2, "sync": 4,
}  # fmt: skip
"""How often each call is drawn."""
GROWING = {
    "create", "mkdir", "mknod", "symlink", "commit", "allocate", "resize", "hide", "publish",
    "restore", "copy_range",
}  # fmt: skip
"""Calls that may use room of the quota."""


@dataclass(frozen=True, slots=True)
class Step:
    """One call: number of the session, name of the call, and choices for its arguments."""

    session: int
    verb: str
    picks: tuple[int, ...]


def sequence(seed: int, shares: Sequence[int], length: int, *, quota: bool = False) -> list[Step]:
    """Return random steps; session i makes `shares[i]` of them, in runs of up to 20.

    A run begins with a walk through all directories, so that the session gets their leases.

    Other sessions move access times without a recall, so a holder may learn of them later (V1 has
    no promise for them). So only a single holder makes `touch`.

    With a quota, only the first session makes calls that use room: what one session has reserved
    counts for all others, so they may be refused earlier.
    """
    rng = random.Random(seed)
    steps = [Step(0, "mkdir", (0, n, 1, n, 0, 1, 1)) for n in range(3)]
    steps += [Step(0, "create", (n, n, 1, 1, 0, 1, 1)) for n in range(3)]
    session, left = 0, 0
    for drawn in rng.choices(list(WEIGHTS), list(WEIGHTS.values()), k=length):
        verb = drawn
        if not left:
            session, left = rng.choices(range(len(shares)), shares)[0], rng.choice((1, 4, 20))
            verb = "walk"
        left -= 1
        if verb == "touch" and (session or len(shares) > 2):
            verb = "getattr"
        elif quota and session and verb in GROWING:
            verb = "readdir"
        steps.append(Step(session, verb, tuple(rng.randrange(10_000) for _ in range(7))))
    return steps
