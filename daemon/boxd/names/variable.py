"""Environment variables that owners may set in their boxes: valid names and values."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from boxd.errors import BadRequest, TooLarge
from boxd.names.words import shown

if TYPE_CHECKING:
    from boxd.secret import Secret

MAX_VALUE = 64 * 1024
"""Maximum size of one value, in bytes."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_REFUSED = ("LD_", "SSH_", "BOX_")
"""Prefixes of the loader's variables, and of the variables that describe a session."""
_SESSION = frozenset(
    ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "PWD", "OLDPWD", "TERM", "MAIL", "UID", "EUID")
)
"""The agent, the login shell or the terminal sets them for each session."""
_SHELL = frozenset(
    (
        "BASH_ENV",
        "BASHOPTS",
        "CDPATH",
        "ENV",
        "EXECIGNORE",
        "GLOBIGNORE",
        "IFS",
        "POSIXLY_CORRECT",
        "PROMPT_COMMAND",
        "PS1",
        "PS4",
        "SHELLOPTS",
        "TMOUT",
        "ZDOTDIR",
    )
)
"""Their values make a shell run code, change how it parses commands, or end it."""
_PYTHON = frozenset(("PYTHONHOME", "PYTHONSTARTUP", "PYTHONINSPECT"))
"""They stop every Python program of a box, or make it run other code first."""
_RESERVED = _SESSION | _SHELL | _PYTHON


def parse_variable(name: str, what: str) -> str:
    """Return the name of a variable that owners may set. `what` names its use in errors.

    Raises BadRequest.
    """
    if _NAME.fullmatch(name) is None:
        raise BadRequest(
            f"{what} name {shown(name)} is not valid: letters, digits and '_', at most 64, and no "
            "digit first; for example API_TOKEN"
        )
    if name.upper().startswith(_REFUSED):
        prefixes = ", ".join(f"{prefix}..." for prefix in _REFUSED)
        raise BadRequest(f"{what} name {shown(name)} is reserved, like all names in {prefixes}")
    if name in _RESERVED:
        raise BadRequest(
            f"{what} name {shown(name)} is reserved: it would change every session in your boxes; "
            f"choose another, for example MY_{name}"
        )
    return name


def check_value(value: Secret, what: str) -> None:
    """Check that a process can have this value in its environment.

    Raises BadRequest or TooLarge. The text of the error never contains the value.
    """
    text = value.reveal()
    if not text:
        raise BadRequest(f"the {what} is empty; give its value on standard input")
    if "\0" in text:
        raise BadRequest(f"the {what} contains a NUL character, which a variable cannot contain")
    try:
        size = len(text.encode("utf-8"))
    except UnicodeEncodeError:
        raise BadRequest(f"the {what} contains half of a surrogate pair") from None
    if size > MAX_VALUE:
        raise TooLarge(f"the {what} is longer than {MAX_VALUE} bytes")
