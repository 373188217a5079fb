"""Whose keys open the console of administrators: the operator's file, one public key a line.

The form is that of OpenSSH's authorized_keys without options: kind, key, comment; lines that begin
with `#` count for nothing.
"""

from __future__ import annotations

import logging
import os
import stat
from typing import TYPE_CHECKING

import asyncssh

from boxd.errors import BadRequest
from boxd.ssh.connection.auth import KINDS, RSA_MIN_BITS, accept

if TYPE_CHECKING:
    from pathlib import Path

FLAG = "--admin-keys"
MAX_BYTES = 1024 * 1024

_log = logging.getLogger(__name__)


class AdminKeys:
    """The owners whose keys stand in the file. Empty before `load`, and without a file."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._owners: frozenset[str] = frozenset()

    def __contains__(self, owner: object) -> bool:
        return owner in self._owners

    def load(self) -> None:
        """Reads the file. Raises BadRequest naming it, the line, and what is wrong there."""
        if self._path is not None:
            self._owners = parse_admin_keys(_read(self._path), str(self._path))

    def reread(self) -> None:
        """Reads the file again; one that cannot be used changes nothing, and the log tells."""
        if self._path is None:
            _log.info("SIGHUP: no settings to read anew; SIGTERM stops the service")
            return
        try:
            self.load()
        except BadRequest as error:
            _log.error("the administrators stay those that they were: %s", error)
        else:
            _log.info("administrators' keys read anew: %d", len(self._owners))


def parse_admin_keys(text: bytes, name: str) -> frozenset[str]:
    """The owners of a file's keys. Raises BadRequest naming `name` and the line."""
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
    """The owner of one line's key. ValueError never quotes the line: it may be another file's."""
    kind, data = words[0], words[1] if len(words) > 1 else b""
    if kind not in KINDS:
        if any(word in KINDS for word in words[1:]):
            raise ValueError("options before a key are not read: give the key alone")
        if b"-cert-" in kind:
            raise ValueError("certificates are not taken: give the key itself")
        known = ", ".join(sorted(kind.decode() for kind in KINDS))
        raise ValueError(f"it begins with no kind of key that is taken ({known})")
    try:
        key = asyncssh.import_public_key(kind + b" " + data)
    except asyncssh.KeyImportError:
        raise ValueError("the key cannot be read: copy the line of a .pub file again") from None
    owner = accept(key) if key.algorithm == kind else None
    if owner is None:
        raise ValueError(f"the key is not safe: RSA needs {RSA_MIN_BITS} bits")
    return owner


def _read(path: Path) -> bytes:
    """The file, if nobody but root and this process' user can write to it. Raises BadRequest."""
    try:
        # A pipe in its place must not keep the service waiting.
        with open(path, "rb", opener=lambda name, how: os.open(name, how | os.O_NONBLOCK)) as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode):
                raise BadRequest(f"{FLAG}: {path} is not a file")
            if stat.S_IMODE(found.st_mode) & 0o022:
                raise BadRequest(f"{FLAG}: others can write to {path}; run: chmod go-w {path}")
            if found.st_uid not in (0, os.geteuid()):
                raise BadRequest(f"{FLAG}: {path} is not root's; run: chown root {path}")
            text = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise BadRequest(f"{FLAG}: {path}: {error.strerror}") from None
    if len(text) > MAX_BYTES:
        raise BadRequest(f"{FLAG}: {path} is longer than {MAX_BYTES} bytes")
    return text
