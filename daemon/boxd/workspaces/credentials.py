"""Object store credentials of volumes: who makes them, and external stores.

The embedded object server (`boxd.embedded.objectstore`) is an issuer itself. An external S3 store
is described by a JSON file, mode 0600:

    {"endpoint": "https://...", "bucket": "...", "region": "...",
     "admin": {"access_key": "...", "secret_key": "..."},
     "volumes": [{"prefix": "...", "access_key": "...", "secret_key": "..."}, ...]}

Each entry of `volumes` is a credential that the operator has limited to the prefix; every new
volume takes the next free one. Without `volumes` all volumes use the administrator's credential,
which the store does not confine: then only the drive's own keys keep volumes apart.
"""

from __future__ import annotations

import json
import os
import re
import stat
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, cast

from boxd.errors import Unavailable
from boxd.secret import Secret, random_hex

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

CHECK_TIMEOUT = 10
"""Seconds that each request of the check at start may take."""
OWN_PREFIX = re.compile("p[0-9a-f]{32}/?")
"""What random prefixes look like."""
_FIELDS = {"endpoint", "bucket", "region", "admin"}


@dataclass(frozen=True, slots=True)
class StoreTarget:
    """Where the blocks of all volumes are kept."""

    endpoint: str
    bucket: str
    region: str


class CredentialIssuer(Protocol):
    """Makes credentials that are each limited to one prefix."""

    async def issue(self, prefix: str) -> tuple[str, Secret]:
        """A credential for the keys below `prefix/`, in force at once. Raises Unavailable."""
        ...

    async def revoke(self, access_key: str) -> None:
        """Ends a credential; an unknown one is no error. Raises Unavailable."""
        ...

    async def credentials(self) -> list[tuple[str, str]]:
        """(access key, prefix with its slash) of what was issued. Raises Unavailable."""
        ...


class PrefixChooser(Protocol):
    """Says under which prefix a new volume keeps its objects."""

    def choose(self, taken: Collection[str]) -> str:
        """A prefix that is not taken, without slash. Raises Unavailable when there is none."""
        ...


class RandomPrefixes:
    """Prefixes that mean nothing and cannot be guessed."""

    def choose(self, taken: Collection[str]) -> str:
        """128 random bits."""
        del taken
        return f"p{random_hex(16)}"


@dataclass(frozen=True, slots=True)
class StoredCredential:
    """One credential of the file."""

    access_key: str
    secret: Secret


@dataclass(frozen=True, slots=True)
class ExternalStore:
    """An S3 store that is not ours; issuer and prefix chooser of its volumes."""

    target: StoreTarget
    admin: StoredCredential = field(repr=False)
    volumes: dict[str, StoredCredential] = field(repr=False)

    @classmethod
    def from_file(cls, path: Path) -> ExternalStore:
        """Reads the description. Raises Unavailable naming what is wrong with the file."""
        raw = _read(path)
        missing = _FIELDS - raw.keys()
        unknown = raw.keys() - _FIELDS - {"volumes"}
        if missing or unknown:
            names = ", ".join(sorted(missing or unknown))
            raise Unavailable(f"{path}: {'missing' if missing else 'unknown'} field {names}")
        try:
            volumes = {
                _prefix(cast("dict[str, str]", row)): _credential(row)
                for row in cast("list[object]", raw.get("volumes", []))
            }
            target = StoreTarget(*(_text(raw[name]) for name in ("endpoint", "bucket", "region")))
            return cls(target, _credential(raw["admin"]), volumes)
        except (KeyError, TypeError, ValueError) as error:
            raise Unavailable(f"{path}: malformed: {error}") from None

    def choose(self, taken: Collection[str]) -> str:
        """The next prefix of the file that no volume has; a random one without `volumes`."""
        if not self.volumes:
            return RandomPrefixes().choose(taken)
        for prefix in self.volumes:
            if prefix not in taken:
                return prefix
        raise Unavailable("the object store has no free volume credential; ask the operator")

    async def issue(self, prefix: str) -> tuple[str, Secret]:
        """The file's credential for the prefix."""
        credential = self.volumes.get(prefix, self.admin) if self.volumes else self.admin
        return credential.access_key, credential.secret

    async def revoke(self, access_key: str) -> None:
        """The operator's credentials are not ours to end."""

    async def credentials(self) -> list[tuple[str, str]]:
        """None: the operator's credentials are not ours to look after."""
        return []

    async def check(self) -> None:
        """Writes, reads and removes an object. Raises Unavailable naming the step that failed."""
        # It takes long to load (see CONTRIBUTING): only who uses it waits for that.
        import aioboto3
        from aiobotocore.config import AioConfig
        from botocore.exceptions import BotoCoreError, ClientError

        key = f"boxd-check/{random_hex(16)}"
        bucket = self.target.bucket
        step = "reach"
        options = AioConfig(
            connect_timeout=CHECK_TIMEOUT,
            read_timeout=CHECK_TIMEOUT,
            retries={"total_max_attempts": 2},
            signature_version="s3v4",
        )
        session = aioboto3.Session()
        try:
            async with session.client(
                "s3",
                endpoint_url=self.target.endpoint,
                region_name=self.target.region,
                aws_access_key_id=self.admin.access_key,
                aws_secret_access_key=self.admin.secret.reveal(),
                config=options,
            ) as client:
                await client.head_bucket(Bucket=bucket)
                step = "write to"
                await client.put_object(Bucket=bucket, Key=key, Body=key.encode("ascii"))
                step = "read from"
                found = await client.get_object(Bucket=bucket, Key=key)
                async with found["Body"] as body:
                    if await body.read() != key.encode("ascii"):
                        raise Unavailable(f"{self.target.endpoint} returned other bytes than sent")
                step = "delete from"
                await client.delete_object(Bucket=bucket, Key=key)
        except ClientError as error:
            code = error.response.get("Error", {}).get("Code", "unknown")
            raise Unavailable(self._failed(step, str(code))) from None
        except (BotoCoreError, ValueError) as error:
            raise Unavailable(self._failed(step, type(error).__name__)) from None

    def _failed(self, step: str, reason: str) -> str:
        target = self.target
        return f"cannot {step} bucket {target.bucket} at {target.endpoint}: {reason}"


def _read(path: Path) -> dict[str, object]:
    try:
        with path.open(encoding="utf-8") as file:
            if stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077:
                raise Unavailable(f"{path}: readable by others; run: chmod 600 {path}")
            raw = json.load(file)
    except OSError as error:
        raise Unavailable(f"{path}: {error.strerror}") from None
    except ValueError:
        raise Unavailable(f"{path}: not JSON") from None
    if not isinstance(raw, dict):
        raise Unavailable(f"{path}: not a JSON object")
    return raw


def _credential(row: object) -> StoredCredential:
    if not isinstance(row, dict):
        raise TypeError("a credential is not an object")
    return StoredCredential(_text(row["access_key"]), Secret(_text(row["secret_key"])))


def _prefix(row: dict[str, str]) -> str:
    prefix = _text(row["prefix"])
    if not prefix or prefix.startswith("/") or prefix.endswith("/"):
        raise ValueError("a prefix is not empty and has no slash at its ends")
    return prefix


def _text(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise TypeError("a field is not a text")
    return value
