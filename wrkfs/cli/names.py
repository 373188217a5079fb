"""File names in `--json`: valid JSON text, and the exact bytes of names that are not UTF-8.

Inside the commands a name that is not UTF-8 holds surrogates (`os.fsdecode`), which JSON cannot
encode. The document then has U+FFFD under `key` and the percent-encoded bytes under `encoded_key`.
"""

from __future__ import annotations

import os
from typing import TypeGuard
from urllib.parse import quote

ENCODED = "encoded_"


def strict(data: object) -> object:
    """Return the document without surrogates. A list of names is encoded as a list."""
    if isinstance(data, list):
        return [strict(item) for item in data]
    if not isinstance(data, dict):
        return _readable(data)
    document: dict[str, object] = {}
    for key, value in data.items():
        document[key] = strict(value)
        if _is_odd(value):
            document[ENCODED + key] = _encoded(value)
        elif isinstance(value, list) and any(_is_odd(item) for item in value):
            document[ENCODED + key] = [_encoded(item) for item in value]
    return document


def _is_odd(value: object) -> TypeGuard[str]:
    """Return whether `value` is a name that is not UTF-8."""
    if not isinstance(value, str) or value.isascii():
        return False
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return True
    return False


def _readable(value: object) -> object:
    return os.fsencode(value).decode("utf-8", "replace") if _is_odd(value) else value


def _encoded(name: str) -> str:
    return quote(os.fsencode(name), safe="/")
