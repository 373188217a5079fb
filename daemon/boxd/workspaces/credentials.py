"""Credentials of volumes for the object store, and external object stores.

The embedded object server (`boxd.embedded.objectstore`) issues credentials itself. A JSON file of
mode 0600 describes an external S3 store:

    {"endpoint": "https://...", "bucket": "...", "region": "...",
     "admin": {"access_key": "...", "secret_key": "..."},
     "volumes": [{"prefix": "...", "access_key": "...", "secret_key": "..."}, ...]}

Each entry of `volumes` is a credential that the operator has limited to the prefix. A new volume
takes the next free one. Without `volumes`, all volumes use the administrator's credential, which
the store does not limit. Then only the drive's own object keys separate volumes.
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
"""Time limit of each request of the check at start, in seconds."""
OWN_PREFIX = re.compile("p[0-9a-f]{32}/?")
"""Matches random prefixes of boxd."""
_FIELDS = {"endpoint", "bucket", "region", "admin"}


@dataclass(frozen=True, slots=True)
class StoreTarget:
    """The location of the blocks of all volumes."""

    endpoint: str
    bucket: str
    region: str


class CredentialIssuer(Protocol):
    """Issues credentials that are each limited to one prefix."""

    async def issue(self, prefix: str) -> tuple[str, Secret]:
        """Create a credential for the keys below `prefix/`, valid at once. Raises Unavailable."""
        ...

    async def revoke(self, access_key: str) -> None:
        """Revoke a credential. An unknown one is not an error. Raises Unavailable."""
        ...

    async def credentials(self) -> list[tuple[str, str]]:
        """Return (access key, prefix with its slash) of all credentials. Raises Unavailable."""
        ...


class PrefixChooser(Protocol):
    """Chooses the prefix of the objects of a new volume."""

    def choose(self, used: Collection[str]) -> str:
        """Return a prefix, without slash, that is not in `used`.

        Raises Unavailable if there is none.
        """
        ...


class RandomPrefixes:
    """Random prefixes, which cannot be guessed."""

    def choose(self, used: Collection[str]) -> str:
        """Return a prefix with 128 random bits."""
        del used
        return f"p{random_hex(16)}"


@dataclass(frozen=True, slots=True)
class ObjectStorage:
    """The object store of an installation: its location, and the source of volumes' credentials."""

    target: StoreTarget
    issuer: CredentialIssuer
    prefixes: PrefixChooser = field(default_factory=RandomPrefixes)


@dataclass(frozen=True, slots=True)
class StoredCredential:
    """A credential in the file of an external store."""

    access_key: str
    secret: Secret


@dataclass(frozen=True, slots=True)
class ExternalStore:
    """An S3 store of the operator. Issues the credentials and chooses the prefixes of volumes."""

    target: StoreTarget
    admin: StoredCredential = field(repr=False)
    volumes: dict[str, StoredCredential] = field(repr=False)

    @classmethod
    def from_file(cls, path: Path) -> ExternalStore:
        """Read the description. Raises Unavailable with the error in the file."""
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

    def choose(self, used: Collection[str]) -> str:
        """Return the next free prefix of the file; a random one without `volumes`."""
        if not self.volumes:
            return RandomPrefixes().choose(used)
        for prefix in self.volumes:
            if prefix not in used:
                return prefix
        raise Unavailable("the object store has no free volume credential; ask the operator")

    async def issue(self, prefix: str) -> tuple[str, Secret]:
        """Return the credential of the file for the prefix."""
        credential = self.volumes.get(prefix, self.admin) if self.volumes else self.admin
        return credential.access_key, credential.secret

    async def revoke(self, access_key: str) -> None:
        """Do nothing: only the operator revokes credentials of the file."""

    async def credentials(self) -> list[tuple[str, str]]:
        """Return nothing: only the operator manages credentials of the file."""
        return []

    async def check(self) -> None:
        """Write, read and remove an object. Raises Unavailable with the step that failed."""
        # This import is slow (see CONTRIBUTING), so only users of external stores pay for it.
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
                answer = await client.get_object(Bucket=bucket, Key=key)
                async with answer["Body"] as body:
                    if await body.read() != key.encode("ascii"):
                        raise Unavailable(f"{self.target.endpoint} returned different bytes")
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
        raise ValueError("a prefix must not be empty, and must not start or end with a slash")
    return prefix


def _text(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise TypeError("a field is not a non-empty string")
    return value
