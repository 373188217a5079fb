"""The authenticated caller. Each interface creates it from a credential for all operations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from datetime import datetime

Via: TypeAlias = Literal["ssh_key", "api_key", "cookie", "share", "admin"]


@dataclass(frozen=True, slots=True)
class ProvedKey:
    """The SSH key that a client proved, and where the client is.

    `public_key` is one line in OpenSSH form. `address` is empty if the client has none.
    """

    fingerprint: str
    public_key: str
    address: str = ""


@dataclass(frozen=True, slots=True)
class Principal:
    """An authenticated caller.

    `owner` is the account: the fingerprint of its first SSH key (`SHA256:...`). For an
    administrator, it is the fingerprint of the administrator's key, whatever account the key has.
    `scope` is the only workspace of a scoped credential, or None for the whole account. `key_id` is
    the id of the API key or share, if any: revoking the key ends the work that it has started. For
    an administrator, `key_id` is the id of the audit entry of the current command.
    """

    owner: str
    scope: str | None
    via: Via
    key_id: str | None = None
    box: str | None = None
    """Id of the only box that the caller has access to. None: all boxes of the scope and owner."""
    expires: datetime | None = None
    """When the credential expires. None: never."""
    proved: ProvedKey | None = None
    """The SSH key of a login. None: the account's first key, or another kind of credential."""

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the SSH key of a login. Without one, that of the first key."""
        return self.owner if self.proved is None else self.proved.fingerprint
