"""Checks before an SSH key joins an account, and the row of the key."""

from __future__ import annotations

from typing import TYPE_CHECKING

from boxd.errors import Conflict, Forbidden
from boxd.model.access.account_key import AccountKey

if TYPE_CHECKING:
    from collections.abc import Sequence

    from boxd.clock import Clock
    from boxd.operations.shared.callers import Callers
    from boxd.principal import Principal
    from boxd.store.interface import ControlStore

MAX_KEYS = 20
"""Maximum number of keys of one account that are in use."""
MAX_KEYS_EVER = 500
"""Maximum number of keys of one account, including removed ones, which the service remembers."""


async def keys_in_use(store: ControlStore, owner: str) -> list[AccountKey]:
    """Return the keys that open an account, the first key first, then the oldest."""
    keys = await store.account_keys(owner)
    if not any(key.fingerprint == owner for key in keys):
        keys = [AccountKey.first_of(owner), *keys]
    return [key for key in keys if key.removed is None]


async def check_room(store: ControlStore, owner: str) -> None:
    """Check that an account may have one more key. Raises Conflict."""
    if len(await keys_in_use(store, owner)) >= MAX_KEYS:
        raise Conflict(f"an account has at most {MAX_KEYS} keys; remove one: keys rm NAME")
    if len(await store.account_keys(owner)) >= MAX_KEYS_EVER:
        raise Conflict(
            f"this account has had {MAX_KEYS_EVER} keys, the maximum; no further key can join it"
        )


async def check_joins(store: ControlStore, callers: Callers, p: Principal, account: str) -> None:
    """Check that the key of a login may join an account.

    Raises Conflict if it opens an account that is not empty, or has joined one; Forbidden if the
    operator has blocked the account.
    """
    callers.check_admitted(p)
    if p.via != "ssh_key":
        raise Forbidden("only a login with the new SSH key proves that key")
    if p.owner == account:
        raise Conflict("this key opens that account already; connect with the new key: ssh -i KEY")
    if p.owner != p.fingerprint:
        raise Conflict("this key belongs to another account; remove it there, or use another key")
    callers.access_policy.check_owner(account)
    if await store.owns_anything(p.owner):
        raise Conflict(
            "this key has an account of its own with boxes, files, keys or other objects; "
            "use a new key"
        )
    await check_room(store, account)


def joining_key(p: Principal, account: str, name: str, clock: Clock) -> AccountKey:
    """Return the row of the key that a client has proved, for an account."""
    public_key = "" if p.proved is None else p.proved.public_key
    return AccountKey(p.fingerprint, account, name, public_key, clock.now())


def free_name(keys: Sequence[AccountKey], name: str) -> str:
    """Return a name that no key has: `name`, or `name` with a number."""
    used = {key.name for key in keys}
    names = (name, *(f"{name}-{number}" for number in range(2, len(used) + 3)))
    return next(one for one in names if one not in used)
