"""Connection strings of PostgreSQL as operators write them."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from urllib.parse import urlsplit

from boxd.errors import BadRequest


def has_password(text: str) -> bool:
    """Return whether a DSN contains a password."""
    return bool(urlsplit(text).password) or "password" in text.lower()


def parse_dsn(text: str, flag: str) -> str:
    """Return a DSN that has no password. Raises BadRequest."""
    if has_password(text):
        raise BadRequest(
            f"{flag} must not contain a password, because other users can read command lines: "
            "write the DSN to a file with mode 0600 and give --meta-dsn-file FILE"
        )
    return text


def read_dsn_file(text: str, _flag: str) -> str:
    """Return the DSN in a file that only its owner can read. Raises BadRequest."""
    path = Path(text)
    try:
        with path.open(encoding="utf-8") as file:
            if stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077:
                raise BadRequest(f"{path} is readable by others; run: chmod 600 {path}")
            return file.read().strip()
    except OSError as error:
        raise BadRequest(f"{path}: {error.strerror}") from None
