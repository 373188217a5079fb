"""Suggestions for mistyped words."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_MAX_TYPED = 64
"""Maximum length of a word to compare, in characters. The comparison takes quadratic time."""


def did_you_mean(typed: str, words: Iterable[str]) -> str:
    """Return `; did you mean WORD?` for an error text, or an empty text if no word is similar."""
    if len(typed) > _MAX_TYPED:
        return ""
    nearest = difflib.get_close_matches(typed.lower(), list(words), n=1)
    return f"; did you mean {nearest[0]}?" if nearest else ""
