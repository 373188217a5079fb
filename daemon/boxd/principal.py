"""Who is asking: made once from a credential, handed to every operation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Via: TypeAlias = Literal["ssh_key", "api_key", "cookie", "share", "admin"]


@dataclass(frozen=True, slots=True)
class Principal:
    """An authenticated caller.

    `owner` is the fingerprint of an SSH public key (`SHA256:...`). `scope` is None for the whole
    account, else the one workspace that the credential is confined to. `key_id` is the API key's
    id when there is one, so that revoking it can end what it started.
    """

    owner: str
    scope: str | None
    via: Via
    key_id: str | None = None
