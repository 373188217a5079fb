"""Secret keys in memory: they print as `***` and are compared in constant time.

The daemon has the same few lines, because this package imports nothing from the daemon.
"""

from __future__ import annotations

import hmac


class Secret:
    """The secret key of a credential.

    Call `reveal()` only to compute a signature or to store it.
    """

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """Return the key itself."""
        return self._value

    def __repr__(self) -> str:
        return "***"

    __str__ = __repr__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and same(self._value, other._value)

    def __hash__(self) -> int:
        return hash(self._value)


def same(left: str, right: str) -> bool:
    """Return whether two texts are equal, in time that does not depend on where they differ."""
    return hmac.compare_digest(_bytes(left), _bytes(right))


def _bytes(text: str) -> bytes:
    # Headers are decoded with surrogates, so that a signature of arbitrary bytes can be compared.
    return text.encode("utf-8", "surrogateescape")
