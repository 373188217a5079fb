"""Secrets in memory. They print as `***`, and this module compares them in constant time."""

from __future__ import annotations

import hashlib
import hmac
import secrets


class Secret:
    """A text that must not appear in output. Call `reveal()` only at the point of use."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """Return the text itself."""
        return self._value

    def __repr__(self) -> str:
        return "***"

    __str__ = __repr__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and same(self._value, other._value)

    def __hash__(self) -> int:
        return hash(self._value)


def same(left: str | bytes, right: str | bytes) -> bool:
    """Return whether two secrets are equal. The time does not depend on where they differ."""
    return hmac.compare_digest(_bytes(left), _bytes(right))


def digest(value: str) -> bytes:
    """Return the SHA-256 of a secret, the only stored form. Random secrets need no salt."""
    return hashlib.sha256(_bytes(value)).digest()


def random_hex(size: int) -> str:
    """Return `size` random bytes as lower-case hexadecimal digits."""
    return secrets.token_hex(size)


def random_word(size: int) -> str:
    """Return `size` random bytes in base64url, which is safe in URLs and cookies."""
    return secrets.token_urlsafe(size)


def _bytes(value: str | bytes) -> bytes:
    return value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value
