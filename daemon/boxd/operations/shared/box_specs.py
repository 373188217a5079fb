"""Box specs: parsing, and the permission to create what they describe."""

from __future__ import annotations

from typing import TYPE_CHECKING

from boxd.authz import Action, Target, require
from boxd.names.spec import parse_spec
from boxd.operations.shared.scope import joined_workspace

if TYPE_CHECKING:
    from boxd.boxes.limits.access_policy import AccessPolicy
    from boxd.boxes.state.interface import Catalog
    from boxd.names.spec import BoxSpec
    from boxd.operations.shared.workspace_registry import WorkspaceRegistry
    from boxd.principal import Principal


class BoxSpecs:
    """Parses the specs of boxes that a caller asks to create. Holds no state."""

    def __init__(
        self, catalog: Catalog, access_policy: AccessPolicy, registry: WorkspaceRegistry
    ) -> None:
        self._catalog = catalog
        self._access_policy = access_policy
        self._registry = registry

    async def creatable(
        self, p: Principal, text: str, ws: str | None, *, anonymous: bool
    ) -> tuple[BoxSpec, str | None]:
        """Return a parsed spec that the principal may create, and its workspace.

        Creating the box creates the workspace. `anonymous` allows a spec without a name. Raises
        BadName, BadRequest, Forbidden; Unavailable while the service drains.
        """
        flavors = {flavor.name for flavor in self._catalog.flavors()}
        spec = parse_spec(text, flavors, allow_anonymous=anonymous)
        workspace = joined_workspace(p, spec.workspace, ws)
        require(p, Action.CREATE_BOX, Target(p.owner, workspace))
        self._access_policy.check_work()
        if workspace is not None:
            await self._registry.check_enters(p, workspace)
        return spec, workspace
