"""Who is asking: made once from a credential, handed to every operation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from datetime import datetime

Via: TypeAlias = Literal["ssh_key", "api_key", "cookie", "share", "admin"]


@dataclass(frozen=True, slots=True)
class Principal:
    """An authenticated caller.

    `owner` is the fingerprint of an SSH public key (`SHA256:...`). `scope` is None for the whole
    account, else the one workspace that the credential is confined to. `key_id` is the id of the
    API key or share when there is one, so that revoking it can end what it started; of an
    administrator, of the audit's entry about the present command.
    """

    owner: str
    scope: str | None
    via: Via
    key_id: str | None = None
    box: str | None = None
    """Id of the one box that there is for it; None: all that scope and owner have."""
    expires: datetime | None = None
    """When the credential ends; None: never."""
