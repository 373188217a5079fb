"""Names of files in JSON. A file name is bytes, but JSON has only Unicode text.

JSON shows each name as text, with U+FFFD for bytes that are not UTF-8. For such a name, a second
member has the percent-encoded bytes. They are exact, and URLs accept them.
"""

from __future__ import annotations

from urllib.parse import quote

ENCODED = "encoded_"
"""The prefix of members with percent-encoded bytes."""


def readable(name: bytes) -> str:
    """Return the name as text. Different names can have the same text."""
    return name.decode("utf-8", "replace")


def encoded(name: bytes) -> str | None:
    """Return the percent-encoded bytes of a name or path, or None if it is valid UTF-8."""
    try:
        name.decode("utf-8")
    except UnicodeDecodeError:
        return quote(name, safe="/")
    return None


def members(key: str, name: bytes) -> dict[str, str]:
    """Return the JSON members for a name: `key`, and `encoded_key` if the name is not UTF-8."""
    exact = encoded(name)
    members = {key: readable(name)}
    return members if exact is None else members | {ENCODED + key: exact}
