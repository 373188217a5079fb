"""The process that sent a request: its user, and its rights."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from wrkfs.types import Caller

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyfuse3

FSETID, SYS_ADMIN = 4, 21
"""Numbers of capabilities."""
_TRUSTED = b"trusted."
_UNKNOWN = 0xFFFF_FFFF
_EFFECTIVE = "CapEff:"


def caller(ctx: pyfuse3.RequestContext) -> Caller:
    """Return the user of a request that creates something."""
    return Caller(ctx.uid, ctx.gid)


def visible(ctx: pyfuse3.RequestContext, names: Sequence[bytes]) -> Sequence[bytes]:
    """Return the extended attributes that the caller sees.

    Only root sees the names of `trusted`. The kernel guards their values.
    """
    if not any(name.startswith(_TRUSTED) for name in names) or may(ctx, SYS_ADMIN):
        return names
    return [name for name in names if not name.startswith(_TRUSTED)]


def may(ctx: pyfuse3.RequestContext, capability: int) -> bool:
    """Return whether the caller has a capability, or is root if the kernel names its user.

    A kernel that allows mounts with id maps names the user only in requests that create something,
    because the ids of other requests would be those of some mount. The caller waits for the answer,
    so /proc still shows it.
    """
    if ctx.uid != _UNKNOWN:
        return ctx.uid == 0
    with suppress(OSError):  # killed in the meantime
        for line in Path(f"/proc/{ctx.pid}/status").read_text(errors="replace").splitlines():
            if line.startswith(_EFFECTIVE):
                return bool(int(line.removeprefix(_EFFECTIVE), 16) >> capability & 1)
    return False
