"""Boxes by the texts of callers: references name existing boxes, specs describe new ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from boxd.authz import Action, Target, joined_workspace, require
from boxd.errors import Ambiguous, NotFound
from boxd.model.view import BoxView, view_box
from boxd.names.reference import parse_reference
from boxd.names.spec import parse_spec
from boxd.names.words import shown

if TYPE_CHECKING:
    from boxd.boxes.lifecycle.lifecycle import Lifecycle
    from boxd.boxes.limits.access_policy import AccessPolicy
    from boxd.boxes.state.interface import Catalog
    from boxd.clock import Clock
    from boxd.model.box import Box
    from boxd.names.reference import Reference
    from boxd.names.spec import BoxSpec
    from boxd.operations.shared.workspace_registry import WorkspaceRegistry
    from boxd.principal import Principal
    from boxd.store.interface import ControlStore

_CANDIDATES = 10


class BoxDirectory:
    """Finds boxes, describes them, and checks specs of new boxes. Holds no state."""

    def __init__(
        self,
        store: ControlStore,
        lifecycle: Lifecycle,
        catalog: Catalog,
        access_policy: AccessPolicy,
        registry: WorkspaceRegistry,
        clock: Clock,
    ) -> None:
        self._store = store
        self._lifecycle = lifecycle
        self._catalog = catalog
        self._access_policy = access_policy
        self._registry = registry
        self._clock = clock

    async def resolve(self, p: Principal, ref: str, ws: str | None = None) -> Box:
        """Return the one box that a reference means.

        Raises BadName; NotFound, even for a box of another owner; Forbidden for a workspace outside
        the principal's scope; Ambiguous, with the candidates.
        """
        require(p, Action.SHOW_BOX)
        reference = parse_reference(ref)
        workspace = joined_workspace(p, reference.workspace, ws)
        boxes = await self._store.find_boxes(
            p.owner, workspace, reference.name, reference.id_prefix
        )
        matches = [box for box in boxes if _is_visible(p, box)]
        if not matches:
            raise NotFound(f"no box {shown(str(reference))}; see: ls")
        if len(matches) > 1:
            raise Ambiguous(_candidates(str(reference), matches))
        return matches[0]

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

    def check_visible(self, p: Principal, box: Box) -> None:
        """Raise NotFound if the principal cannot see a box that a reference was resolved to."""
        if box.owner != p.owner or not _is_visible(p, box):
            raise NotFound(f"no box {box.id}; see: ls")

    def is_anywhere(self, reference: Reference) -> bool:
        """Return whether a reference can mean a box of any owner, for requests without a key.

        Reads only memory.
        """
        return self._lifecycle.box_index.has(reference)

    async def visible(self, p: Principal) -> list[Box]:
        """Return the boxes that a principal can see."""
        return [box for box in await self._store.boxes(p.owner) if _is_visible(p, box)]

    def view(self, box: Box) -> BoxView:
        """Return the current view of a box for users."""
        return view_box(box, self._clock.now(), self._lifecycle.use(box))


def _is_visible(p: Principal, box: Box) -> bool:
    """Return whether a principal can see a box of its owner."""
    return (p.scope is None or box.workspace == p.scope) and p.box in (None, box.id)


def _candidates(ref: str, boxes: list[Box]) -> str:
    listed = ", ".join(f"{box.ref} ({box.id})" for box in boxes[:_CANDIDATES])
    more = f" and {len(boxes) - _CANDIDATES} more" if len(boxes) > _CANDIDATES else ""
    return f"{shown(ref)} is ambiguous: {listed}{more}"
