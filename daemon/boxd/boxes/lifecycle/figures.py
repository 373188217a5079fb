"""Figures about all boxes, for metrics. Everything comes from memory; nothing here waits."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from boxd.model.box import BoxState

if TYPE_CHECKING:
    from boxd.boxes.lifecycle.collaborators import Collaborators
    from boxd.boxes.limits.admission import Admission


@dataclass(frozen=True, slots=True)
class BoxFigures:
    """Numbers of boxes, and of work on boxes that waits."""

    boxes: dict[str, int]
    """Boxes with a row, by state; every state has a number."""
    attachments: int
    admission_waits: int
    """Starts of boxes that wait for the check of the limits."""
    pending_removals: int
    """Removals that were announced and have not ended."""
    removal_retries: int
    """Removed boxes with parts that are still on the host."""
    settle_retries: int
    """Boxes that a failure left between two states."""


class Figures:
    """Reads the figures."""

    def __init__(self, collaborators: Collaborators, admission: Admission) -> None:
        self._timers = collaborators.timers
        self._attachments = collaborators.attachments
        self._pending_removals = collaborators.pending_removals
        self._admission = admission

    def read(self) -> BoxFigures:
        """Return the figures of this moment."""
        states = Counter(box.state.value for box in self._timers.boxes())
        removals, settlings = self._timers.retries
        return BoxFigures(
            boxes={state.value: states[state.value] for state in BoxState},
            attachments=self._attachments.total,
            admission_waits=self._admission.waiting.count,
            pending_removals=self._pending_removals.total,
            removal_retries=removals,
            settle_retries=settlings,
        )
