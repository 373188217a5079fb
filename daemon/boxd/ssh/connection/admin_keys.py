"""The administrators' keys: a file of the operator with one public key a line.

The format is OpenSSH's authorized_keys without options: key type, key, comment. Lines that start
with `#` are comments.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import asyncssh

from boxd.embedded.files import read_settings
from boxd.errors import BadRequest, BoxdError
from boxd.ssh.connection.auth import KEY_TYPES, RSA_MIN_BITS, fingerprint_of_key

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

FLAG = "--admin-keys"

_log = logging.getLogger(__name__)


class AdminKeys:
    """The owners of the keys in the file; empty before `load`, and without a file."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._owners: frozenset[str] = frozenset()

    def __contains__(self, owner: object) -> bool:
        return owner in self._owners

    def load(self) -> None:
        """Read the file. Raises BadRequest that names the file, the line and the problem."""
        if self._path is not None:
            self._replace(read_settings(self._path, FLAG))

    def _replace(self, text: bytes) -> None:
        self._owners = parse_admin_keys(text, str(self._path))

    async def reload(self, read: Callable[[], Awaitable[bytes]]) -> None:
        """Take the new content of the file, which `read` returns.

        If it cannot be used, log the problem and keep the old keys.
        """
        if self._path is None:
            _log.info("SIGHUP: there are no settings to reload; SIGTERM stops the service")
            return
        try:
            self._replace(await read())
        except BoxdError as error:
            _log.error("administrators' keys not reloaded; the previous ones stay valid: %s", error)
        else:
            _log.info("administrators' keys reloaded: %d", len(self._owners))


def parse_admin_keys(text: bytes, name: str) -> frozenset[str]:
    """Return the owners of a file's keys. Raises BadRequest that names `name` and the line."""
    owners = set()
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if words and not words[0].startswith(b"#"):
            try:
                owners.add(_owner(words))
            except ValueError as error:
                raise BadRequest(f"{FLAG}: {name}, line {number}: {error}") from None
    return frozenset(owners)


def _owner(words: list[bytes]) -> str:
    """Return the owner of one line's key.

    ValueError never quotes the line: the path may name another file by mistake, with secrets in it.
    """
    key_type, data = words[0], words[1] if len(words) > 1 else b""
    if key_type not in KEY_TYPES:
        if any(word in KEY_TYPES for word in words[1:]):
            raise ValueError("options before a key are not supported; write only the key")
        if b"-cert-" in key_type:
            raise ValueError("certificates are not supported; write the public key itself")
        accepted = ", ".join(sorted(name.decode() for name in KEY_TYPES))
        raise ValueError(f"it does not start with a supported key type ({accepted})")
    try:
        key = asyncssh.import_public_key(key_type + b" " + data)
    except asyncssh.KeyImportError:
        raise ValueError("the key cannot be read; copy the line of the .pub file again") from None
    owner = fingerprint_of_key(key) if key.algorithm == key_type else None
    if owner is None:
        raise ValueError(f"the key is not safe; an RSA key needs at least {RSA_MIN_BITS} bits")
    return owner
