"""Recovery codes: with one, a new SSH key joins an account whose keys are lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from boxd.authz import Action, require
from boxd.errors import BoxdError, NotFound
from boxd.model.account import Audit
from boxd.operations.accounts.codes import digest_of_code, new_code
from boxd.operations.accounts.joining import check_joins, free_name, joining_key, keys_in_use
from boxd.secret import random_hex

if TYPE_CHECKING:
    from boxd.clock import Clock
    from boxd.model.access.account_key import AccountKey
    from boxd.operations.accounts.tries import Tries
    from boxd.operations.shared.callers import Callers
    from boxd.principal import Principal
    from boxd.secret import Secret
    from boxd.store.interface import ControlStore

CODES = 8
"""Number of recovery codes of an account."""
CODE_BYTES = 20
_AUDITED = "cli: recovery use"
"""The line of the audit entry about the use of a code."""
_NAME = "recovered"
"""The name of a key that joined with a recovery code, with a number if it is taken."""


class RecoveryOperations:
    """Creates, counts and uses recovery codes.

    Critical section: each change holds `AccountKeys.changing` from its checks to its end.
    """

    def __init__(self, store: ControlStore, callers: Callers, tries: Tries, clock: Clock) -> None:
        self._store = store
        self._callers = callers
        self._account_keys = callers.account_keys
        self._tries = tries
        self._clock = clock

    async def create_codes(self, p: Principal) -> list[Secret]:
        """Replace the recovery codes of the account; the service shows the new ones once."""
        require(p, Action.MANAGE_RECOVERY)
        async with self._account_keys.changing:
            self._callers.check_admitted(p)
            codes = [new_code(CODE_BYTES) for _ in range(CODES)]
            digests = [digest_of_code(code.reveal()) for code in codes]
            await self._store.put_recovery_codes(p.owner, digests, self._clock.now())
        self._callers.seen(p, has_something=True)
        return codes

    async def count_codes(self, p: Principal) -> int:
        """Return the number of unused recovery codes of the account."""
        require(p, Action.MANAGE_RECOVERY)
        return await self._store.recovery_codes(p.owner)

    async def use_code(self, p: Principal, code: str) -> AccountKey:
        """Link the key of this login to the account of the code, and use up the code.

        The audit records the use. Raises NotFound for an unknown or used code; QuotaExceeded after
        too many; and what `check_joins` raises. The code then stays valid.
        """
        require(p, Action.JOIN_ACCOUNT)
        async with self._account_keys.changing:
            self._tries.check(p)
            sha256 = digest_of_code(code)
            account = await self._store.find_recovery_code(sha256)
            if account is None:
                self._tries.count(p)
                raise NotFound("this recovery code is not valid, or it has been used or replaced")
            await check_joins(self._store, self._callers, p, account)
            entry = Audit(random_hex(16), self._clock.now(), p.fingerprint, _AUDITED)
            await self._store.add_audit(entry)
            name = free_name(await keys_in_use(self._store, account), _NAME)
            key = joining_key(p, account, name, self._clock)
            try:
                await self._account_keys.add(key, sha256, p)
            except BoxdError as error:
                await self._store.finish_audit(entry.id, error.exit_status, [account])
                raise
            await self._store.finish_audit(entry.id, 0, [account])
        self._callers.access_policy.learn(account)
        return key
