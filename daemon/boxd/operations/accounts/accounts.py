"""The display name of an account."""

from __future__ import annotations

from typing import TYPE_CHECKING

from boxd.authz import Action, require
from boxd.errors import BadRequest
from boxd.names.words import shown

if TYPE_CHECKING:
    from boxd.principal import Principal
    from boxd.store.interface import ControlStore

MAX_ACCOUNT_NAME = 64
"""Maximum length of a display name, in characters."""


class AccountOperations:
    """Changes facts about an account. Holds no state."""

    def __init__(self, store: ControlStore) -> None:
        self._store = store

    async def set_name(self, p: Principal, name: str | None) -> str | None:
        """Set the display name of the account; None and "" remove it. Returns the new name.

        The name is only a label for people: no command accepts it in place of the fingerprint.
        Raises BadRequest if it is too long or not printable.
        """
        require(p, Action.NAME_ACCOUNT)
        name = (name or "").strip() or None
        if name is not None and (len(name) > MAX_ACCOUNT_NAME or not name.isprintable()):
            raise BadRequest(
                f"account name {shown(name)} is not valid: use at most {MAX_ACCOUNT_NAME} "
                "printable characters"
            )
        await self._store.set_account_name(p.owner, name)
        return name
