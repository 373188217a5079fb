"""Codes that people type: random base32 in groups of four. The store has only their digests."""

from __future__ import annotations

import base64
import secrets

from boxd.secret import Secret, digest

_GROUP = 4
_MAX_TYPED = 128
"""Maximum length of a typed code, in characters. A longer text matches no code."""


def new_code(size: int) -> Secret:
    """Return a new code of `size` random bytes, which must be a multiple of five."""
    text = base64.b32encode(secrets.token_bytes(size)).decode()
    groups = [text[start : start + _GROUP] for start in range(0, len(text), _GROUP)]
    return Secret("-".join(groups))


def digest_of_code(typed: str) -> bytes:
    """Return the digest of a typed code. Case, hyphens and spaces do not matter."""
    if len(typed) > _MAX_TYPED:
        typed = ""
    return digest("".join(typed.upper().replace("-", "").split()))
