"""Users of the service's processes, whose ids no other test uses."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from boxd.sandbox.id_claims import IdClaims
from boxd.sandbox.users import ServiceUsers

if TYPE_CHECKING:
    from pathlib import Path


def service_users(state: Path) -> ServiceUsers:
    """Return the users of an installation with this state directory."""
    instance = hashlib.sha256(bytes(state)).hexdigest()[:8]
    users = ServiceUsers(instance, state, IdClaims(instance, state / "id-claims"))
    users.setup()
    return users
