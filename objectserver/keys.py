"""The key table: access keys, their secrets, and the one prefix that each key may access."""

from __future__ import annotations

import json
import os
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING

from objectserver.durable import write_private
from objectserver.secret import Secret

if TYPE_CHECKING:
    from pathlib import Path


class BadKeyTable(Exception):
    """The key file is unreadable, readable by others, or malformed."""


@dataclass(frozen=True, slots=True)
class Credential:
    """One access key. `prefix` ends in `/`; an empty prefix makes it the administrator's key."""

    access_key: str
    secret: Secret
    prefix: str

    @property
    def is_admin(self) -> bool:
        """Whether the key may access the whole bucket."""
        return not self.prefix

    def may(self, key: str) -> bool:
        """Return whether the key may access an object, existing or not."""
        return key.startswith(self.prefix)


class KeyTable:
    """All credentials. A change is on the disk and in force before its method returns.

    Critical sections: none; every method runs without await.
    """

    def __init__(self, path: Path) -> None:
        """Read the table; a missing file is an empty table. Raises BadKeyTable."""
        self._path = path
        self._keys: dict[str, Credential] = {}
        try:
            with path.open(encoding="utf-8") as file:
                if stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077:
                    raise BadKeyTable(
                        f"{path}: the file is readable by other users; run: chmod 600 {path}"
                    )
                raw = json.load(file)
        except FileNotFoundError:
            return
        except (OSError, ValueError) as error:
            raise BadKeyTable(f"{path}: {type(error).__name__}") from None
        for access_key, row in raw.items():
            self._keys[access_key] = Credential(access_key, Secret(row["secret"]), row["prefix"])

    def find(self, access_key: str) -> Credential | None:
        """Return the credential of an access key, or None."""
        return self._keys.get(access_key)

    def secret_of(self, access_key: str) -> Secret | None:
        """Return the secret of an access key, or None."""
        credential = self._keys.get(access_key)
        return None if credential is None else credential.secret

    def rows(self) -> list[tuple[str, str]]:
        """Return (access key, prefix) of all credentials, sorted."""
        return sorted((key.access_key, key.prefix) for key in self._keys.values())

    def add(self, credential: Credential) -> None:
        """Add or replace a credential. Raises ValueError for an invalid prefix, OSError."""
        if credential.prefix and not credential.prefix.endswith("/"):
            raise ValueError("a prefix must end in /")
        self._save({**self._keys, credential.access_key: credential})

    def remove(self, access_key: str) -> bool:
        """Remove a credential; return whether it existed. Raises OSError."""
        if access_key not in self._keys:
            return False
        self._save({name: key for name, key in self._keys.items() if name != access_key})
        return True

    def _save(self, keys: dict[str, Credential]) -> None:
        rows = {
            name: {"secret": key.secret.reveal(), "prefix": key.prefix}
            for name, key in keys.items()
        }
        write_private(self._path, json.dumps(rows).encode("utf-8"))
        self._keys = keys
