"""The key table: access keys, their secrets, and the one prefix that each may touch."""

from __future__ import annotations

import json
import os
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING

from boxd.embedded.files import write_private
from boxd.secret import Secret

if TYPE_CHECKING:
    from pathlib import Path


class BadKeyTable(Exception):
    """The key file is unreadable, readable by others, or malformed."""


@dataclass(frozen=True, slots=True)
class Credential:
    """One key. `prefix` ends in `/`, or is empty: then it is the administrator's."""

    access_key: str
    secret: Secret
    prefix: str

    @property
    def is_admin(self) -> bool:
        """Whether it may touch the whole bucket."""
        return not self.prefix

    def may(self, key: str) -> bool:
        """Whether it may touch an object, existing or not."""
        return key.startswith(self.prefix)


class KeyTable:
    """All credentials. Changes are on the disk before they return, and in force at once.

    Critical sections: none; every method runs without await.
    """

    def __init__(self, path: Path) -> None:
        """Reads the table; a missing file is an empty one. Raises BadKeyTable."""
        self._path = path
        self._keys: dict[str, Credential] = {}
        try:
            with path.open(encoding="utf-8") as file:
                if stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077:
                    raise BadKeyTable(f"{path}: readable by others; run: chmod 600 {path}")
                raw = json.load(file)
        except FileNotFoundError:
            return
        except (OSError, ValueError) as error:
            raise BadKeyTable(f"{path}: {type(error).__name__}") from None
        for access_key, row in raw.items():
            self._keys[access_key] = Credential(access_key, Secret(row["secret"]), row["prefix"])

    def find(self, access_key: str) -> Credential | None:
        """The credential of an access key."""
        return self._keys.get(access_key)

    def secret_of(self, access_key: str) -> Secret | None:
        """The secret of an access key."""
        found = self._keys.get(access_key)
        return None if found is None else found.secret

    def rows(self) -> list[tuple[str, str]]:
        """(access key, prefix) of all."""
        return sorted((key.access_key, key.prefix) for key in self._keys.values())

    def add(self, credential: Credential) -> None:
        """Adds or replaces a credential. Raises ValueError for a bad prefix, OSError."""
        if credential.prefix and not credential.prefix.endswith("/"):
            raise ValueError("a prefix ends in /")
        self._save({**self._keys, credential.access_key: credential})

    def remove(self, access_key: str) -> bool:
        """Removes a credential; whether there was one. Raises OSError."""
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
