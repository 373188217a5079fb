"""Single words: names of boxes, workspaces and keys, and untrusted text in errors."""

from __future__ import annotations

import re

from boxd.errors import BadName

MAX_NAME = 57
"""Maximum length of a name, in characters. With a hyphen and a port, it fits in a DNS label."""
MAX_KEY_NAME = 64
DEFAULT_WORKSPACE = "(default)"
"""The text for the workspace that has no name."""
ANONYMOUS = "_"
"""The word for a throwaway box without a stable name."""
RESERVED = frozenset({"images", "image", "cli", "help", "sudo", "jump", ANONYMOUS})
SHARE_PREFIX = "svcs_"
"""The prefix of a share's user name and token."""
RESERVED_PREFIXES = ("session-", SHARE_PREFIX)

_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,55}[a-z0-9])?")
_KEY_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,62}[A-Za-z0-9])?")
_SHOWN = 80


def shown(text: str) -> str:
    """Return `text` in quotes for an error: at most 80 characters, unprintable ones escaped."""
    cut = text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."
    return "'" + escaped(cut) + "'"


def escaped(text: str) -> str:
    """Return `text` with unprintable characters and lone surrogates as escapes."""
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text
    )


def fold(text: str) -> str:
    """Return `text` in lower case if it is ASCII.

    Other text stays unchanged, so that no look-alike becomes a letter.
    """
    return text.lower() if text.isascii() else text


def is_name(text: str) -> bool:
    """Return whether `text` has the form of a name. Reserved words have this form too."""
    return _NAME.fullmatch(text) is not None


def is_reserved(name: str) -> bool:
    """Return whether the SSH server gives this word a special meaning."""
    return name in RESERVED or name.startswith(RESERVED_PREFIXES)


def parse_name(text: str, what: str = "box name") -> str:
    """Return a name for a new object in lower case. `what` names the kind of object in errors.

    Raises BadName for another form and for reserved words.
    """
    name = fold(text)
    if is_reserved(name):
        raise BadName(f"{what} {shown(text)} is reserved; choose another, for example 'web'")
    if is_name(name):
        return name
    if not name:
        raise BadName(f"the {what} is missing; for example 'web'")
    if len(name) > MAX_NAME:
        raise BadName(
            f"{what} {shown(text)} is {len(name)} characters long; at most {MAX_NAME} are allowed"
        )
    raise BadName(
        f"{what} {shown(text)} is not valid: use a-z, 0-9 and '-', with a letter or digit first"
        " and last, for example 'my-web2'"
    )


def parse_workspace(text: str) -> str:
    """Return a workspace name in lower case. Raises BadName."""
    return parse_name(text, "workspace name")


def parse_key_name(text: str) -> str:
    """Return the name of an API key. Raises BadName."""
    if _KEY_NAME.fullmatch(text) is None:
        raise BadName(
            f"key name {shown(text)} is not valid: 1 to {MAX_KEY_NAME} letters, digits, '.', '_'"
            " and '-', with a letter or digit first and last, for example 'laptop'"
        )
    return text
