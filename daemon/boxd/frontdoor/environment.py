"""Which variables of a client's session reach the box. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_VARIABLES = 256
MAX_VALUE = 32 * 1024
"""Bytes of one value."""

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
