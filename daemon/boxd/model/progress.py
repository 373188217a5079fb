"""Progress reports: what a verb tells its caller while it runs."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from boxd.model.box import BoxState

if TYPE_CHECKING:
    from collections.abc import Callable

    from boxd.model.box import Box

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Progress:
    """Passes the reports of a verb to the callbacks of its caller.

    `on_note` receives lines for people, such as that a deadline was shortened. Without it, notes go
    to the debug log. `on_start` receives a box when the verb starts to create or wake it; the state
    of the box shows which of the two. `on_hint` receives lines that do not concern the request.
    Only callers with a person at a terminal have it. Callbacks return at once and do not raise.
    """

    on_note: Callable[[str], None] | None = None
    on_start: Callable[[Box], None] | None = None
    on_hint: Callable[[str], None] | None = None

    @classmethod
    def in_lines(
        cls, on_note: Callable[[str], None] | None, on_step: Callable[[str], None] | None
    ) -> Progress:
        """Also report starts as text: `on_step` receives, for example, "creating web ..."."""
        if on_step is None:
            return cls(on_note)
        return cls(on_note, lambda box: on_step(start_line(box)))

    def note(self, line: str) -> None:
        """Report a line for people."""
        if self.on_note is None:
            _log.debug(line)
        else:
            self.on_note(line)

    def start(self, box: Box) -> None:
        """Report that the creation or the wake-up of a box starts; `box` is its new row."""
        if self.on_start is not None:
            self.on_start(box)

    def also_on_start(self, callback: Callable[[Box], None]) -> Progress:
        """Return a Progress that passes starts to `callback` first, then to this one."""

        def on_start(box: Box) -> None:
            callback(box)
            self.start(box)

        return replace(self, on_start=on_start)


SILENT = Progress()
"""For callers that need no reports."""


def start_line(box: Box) -> str:
    """Return the line that shows a waiting user what the daemon is doing with the box."""
    if box.state is BoxState.CREATING:
        return f"creating {box.ref} ..."
    return f"{'resuming' if box.memory else 'starting'} {box.ref} ..."
