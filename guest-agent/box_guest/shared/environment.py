"""Filters the environment variables that a client's session may set in a box. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_VARIABLES = 256
"""Maximum number of variables of one session; further ones are dropped."""
MAX_VALUE = 32 * 1024
"""Maximum size of a variable's value, in bytes; larger values are dropped."""

SESSION = {
    b"SSH_CLIENT": b"UNKNOWN 65535 65535",
    b"SSH_CONNECTION": b"UNKNOWN 65535 UNKNOWN 65535",
}
"""Variables that mark a session as an SSH session: only then does Debian's bash read `~/.bashrc`
for `ssh box command`. The values are those that OpenSSH uses for an unknown address: a box does not
learn its users' addresses."""

_NAME = re.compile(rb"[A-Za-z_][A-Za-z0-9_]{0,254}")
_REFUSED = (b"LD_", b"SSH_", b"BOX_")
"""Prefixes of the loader's variables, and of the variables in which the agent describes the
session."""


def filtered(env: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """Return the variables that a client may set.

    Drops other variables silently, as SSH servers do.
    """
    passed = {
        name: value
        for name, value in env.items()
        if _NAME.fullmatch(name)
        and not name.startswith(_REFUSED)
        and len(value) <= MAX_VALUE
        and b"\0" not in value
    }
    return dict(list(passed.items())[:MAX_VARIABLES])
