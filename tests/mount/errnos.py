"""The errno of a call, for tests that expect a certain one."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def errno_of(call: Callable[..., object], *args: object, **named: object) -> int:
    """The errno that a call fails with, 0 when it succeeds."""
    try:
        call(*args, **named)
    except OSError as error:
        return error.errno or -1
    return 0
