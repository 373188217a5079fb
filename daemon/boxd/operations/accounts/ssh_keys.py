"""The SSH keys of an account: list, add, confirm and remove them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from boxd.authz import Action, require
from boxd.errors import BadName, Conflict, NotFound
from boxd.model.access.account_key import FIRST
from boxd.names.words import parse_key_name, shown
from boxd.operations.accounts.codes import digest_of_code, new_code
from boxd.operations.accounts.joining import check_joins, check_room, joining_key, keys_in_use

if TYPE_CHECKING:
    from datetime import datetime

    from boxd.clock import Clock
    from boxd.model.access.account_key import AccountKey
    from boxd.operations.accounts.tries import Tries
    from boxd.operations.shared.callers import Callers
    from boxd.principal import Principal
    from boxd.secret import Secret
    from boxd.store.interface import ControlStore

CODE_LIVES = timedelta(minutes=10)
"""Time for which a code of `add_key` is valid."""
CODE_BYTES = 15
MAX_PENDING = 5
"""Maximum number of valid codes of one account. A new code replaces the oldest one."""


@dataclass(frozen=True, slots=True)
class Invitation:
    """A code for a new key of an account, which the key must confirm before `expires`."""

    owner: str
    name: str
    expires: datetime


class SshKeyOperations:
    """Links SSH keys to accounts, and removes them.

    Codes are in memory: a restart of the service ends them. Critical section: each change holds
    `AccountKeys.changing` from its checks to its end. `_invitations` changes only under it.
    """

    def __init__(self, store: ControlStore, callers: Callers, tries: Tries, clock: Clock) -> None:
        self._store = store
        self._callers = callers
        self._account_keys = callers.account_keys
        self._tries = tries
        self._clock = clock
        self._invitations: dict[bytes, Invitation] = {}
        """By the digest of the code, oldest first."""

    async def list_keys(self, p: Principal) -> list[AccountKey]:
        """Return the SSH keys that open the account, the first key first, then the oldest."""
        require(p, Action.LIST_ACCOUNT_KEYS)
        return await keys_in_use(self._store, p.owner)

    async def add_key(self, p: Principal, name: str) -> tuple[datetime, Secret]:
        """Return a code with which a new key can join the account, and when the code expires.

        Nothing changes before the new key confirms the code. Raises BadName; Conflict if a key of
        the account has this name, or if the account has too many keys.
        """
        require(p, Action.ADD_ACCOUNT_KEY)
        name = parse_key_name(name)
        if name == FIRST:
            raise BadName(f"the name {FIRST} belongs to the account's first key; choose another")
        async with self._account_keys.changing:
            self._callers.check_admitted(p)
            if any(key.name == name for key in await keys_in_use(self._store, p.owner)):
                raise Conflict(f"the account has another key named {name}; choose another name")
            await check_room(self._store, p.owner)
            code, expires = new_code(CODE_BYTES), self._clock.now() + CODE_LIVES
            self._trim(p.owner)
            self._invitations[digest_of_code(code.reveal())] = Invitation(p.owner, name, expires)
        return expires, code

    async def confirm_key(self, p: Principal, code: str) -> AccountKey:
        """Link the key of this login to the account that issued the code, and use up the code.

        Raises NotFound for an unknown, used or expired code; QuotaExceeded after too many; and what
        `check_joins` raises. The code then stays valid.
        """
        require(p, Action.JOIN_ACCOUNT)
        async with self._account_keys.changing:
            self._tries.check(p)
            sha256 = digest_of_code(code)
            invitation = self._invitations.get(sha256)
            if invitation is None or invitation.expires <= self._clock.now():
                self._tries.count(p)
                raise NotFound(
                    "this code is not valid, or it has been used or has expired; get a new one "
                    "with a key of the account: keys add NAME"
                )
            await check_joins(self._store, self._callers, p, invitation.owner)
            key = joining_key(p, invitation.owner, invitation.name, self._clock)
            await self._account_keys.add(key, None, p)
            self._invitations.pop(sha256, None)
        self._callers.access_policy.learn(key.owner)
        return key

    async def remove_key(self, p: Principal, text: str) -> AccountKey:
        """Remove a key, by its name or fingerprint, and end its connections.

        The key never opens an account of this service again. Codes that wait for a key end, too.
        Raises NotFound; Conflict for the only key, and for the key of this login.
        """
        require(p, Action.REMOVE_ACCOUNT_KEY)
        async with self._account_keys.changing:
            self._callers.check_admitted(p)
            keys = await keys_in_use(self._store, p.owner)
            key = next((key for key in keys if text in (key.name, key.fingerprint)), None)
            if key is None:
                raise NotFound(f"no SSH key {shown(text)}; see: keys ls")
            if len(keys) == 1:
                raise Conflict(
                    "the only key of an account cannot be removed; add another one first: "
                    "keys add NAME"
                )
            if p.via == "ssh_key" and key.fingerprint == p.fingerprint:
                raise Conflict(
                    "you are connected with this key; remove it with another key of the account, "
                    "so that you know that the other key works"
                )
            for sha256 in self._codes_of(p.owner):
                del self._invitations[sha256]
            await self._account_keys.remove(key, self._clock.now())
        return key

    def _trim(self, owner: str) -> None:
        """Forget expired codes, and the oldest ones of an account that has too many."""
        now = self._clock.now()
        for sha256, invitation in list(self._invitations.items()):
            if invitation.expires <= now:
                del self._invitations[sha256]
        for sha256 in self._codes_of(owner)[: 1 - MAX_PENDING]:
            del self._invitations[sha256]

    def _codes_of(self, owner: str) -> list[bytes]:
        return [
            sha256 for sha256, invitation in self._invitations.items() if invitation.owner == owner
        ]
