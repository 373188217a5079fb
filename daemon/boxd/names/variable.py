"""Variables that owners may set in their boxes: names, and what can be a value. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from boxd.errors import BadRequest, TooLarge
from boxd.names.words import shown

if TYPE_CHECKING:
    from boxd.secret import Secret

MAX_VALUE = 64 * 1024
"""Bytes of one value."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_REFUSED = ("LD_", "SSH_", "BOX_")
"""Those of the loader, and those by which a session is told about itself."""


def parse_variable(name: str, what: str) -> str:
    """The name of a variable that may be set in a box; `what` names its use. BadRequest."""
    if _NAME.fullmatch(name) is None:
        raise BadRequest(
            f"{what} name {shown(name)} is not valid: letters, digits and '_', at most 64, and no "
            "digit first; for example API_TOKEN"
        )
    if name.upper().startswith(_REFUSED):
        beginnings = ", ".join(f"{one}..." for one in _REFUSED)
        raise BadRequest(f"{what} name {shown(name)} is reserved, like all of {beginnings}")
    return name


def check_value(value: Secret, what: str) -> None:
    """Whether a process can have it as a variable. BadRequest, TooLarge; the text never has it."""
    text = value.reveal()
    if not text:
        raise BadRequest(f"the {what} is empty: its value is read from standard input")
    if "\0" in text:
        raise BadRequest(f"the {what} holds a NUL character, which no variable can")
    try:
        size = len(text.encode("utf-8"))
    except UnicodeEncodeError:
        raise BadRequest(f"the {what} holds half of a surrogate pair") from None
    if size > MAX_VALUE:
        raise TooLarge(f"the {what} is longer than {MAX_VALUE} bytes")
