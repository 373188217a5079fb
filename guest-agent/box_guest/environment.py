"""Which variables of a client's session reach the box. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_VARIABLES = 256
MAX_VALUE = 32 * 1024
"""Bytes of one value."""

SESSION = {
    b"SSH_CLIENT": b"UNKNOWN 65535 65535",
    b"SSH_CONNECTION": b"UNKNOWN 65535 UNKNOWN 65535",
}
"""What says that a session came by SSH: Debian's bash reads `~/.bashrc` for `ssh box command` only
then. In the words of OpenSSH for an address that it does not know: a box is not told whose
addresses its users have."""

_NAME = re.compile(rb"[A-Za-z_][A-Za-z0-9_]{0,254}")
_REFUSED = (b"LD_", b"SSH_", b"BOX_")
"""The loader's, and those by which the agent tells a session about itself."""


def filtered(env: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """What a client may set; the rest is dropped, as SSH servers do."""
    passed = {
        name: value
        for name, value in env.items()
        if _NAME.fullmatch(name)
        and not name.startswith(_REFUSED)
        and len(value) <= MAX_VALUE
        and b"\0" not in value
    }
    return dict(list(passed.items())[:MAX_VARIABLES])
