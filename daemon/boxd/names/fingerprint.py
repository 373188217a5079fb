"""Texts that administrators type: owners, and references to boxes of any owner."""

from __future__ import annotations

import re

from boxd.errors import BadName
from boxd.names.reference import Reference, parse_reference
from boxd.names.words import shown

EXAMPLE = "SHA256: and 43 characters, as `owners` shows"

_FINGERPRINT = re.compile(r"SHA256:[A-Za-z0-9+/]{43}")


def parse_owner(text: str) -> str:
    """Return the fingerprint of an owner's key. Raises BadName."""
    if _FINGERPRINT.fullmatch(text) is None:
        raise BadName(f"{shown(text)} is not the fingerprint of a key: {EXAMPLE}")
    return text


def parse_fleet_reference(text: str) -> tuple[str | None, Reference]:
    """Return the owner and the reference in `FINGERPRINT:REFERENCE` or `ID`.

    An id, or the beginning of an id, refers to a box of any owner; the owner is then None. Raises
    BadName, even for a name without an owner, because several owners may use the same name.
    """
    if text.startswith("SHA256:"):
        owner, _, ref = text.rpartition(":")
        return parse_owner(owner), parse_reference(ref)
    reference = parse_reference(text)
    if reference.id_prefix is None:
        raise BadName(
            f"{shown(text)} is not a box of the fleet: give its id, the beginning of its id, or "
            "FINGERPRINT:NAME"
        )
    return None, reference
