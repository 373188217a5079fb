"""Messages about changes of files, on the subsystem `box-watch`.

The channel carries one request, `{path, recursive}`. The path is text; surrogate escapes stand for
bytes that are not UTF-8. After the answer `{watches}`, the number of watched directories, the agent
sends one JSON object for each event, on a line of its own:

- `{"kind": created | modified | removed, "path": path, "is_dir": is_dir}`;
- `{"kind": moved, "path": path, "from": former path, "is_dir": is_dir}`;
- `{"kind": overflow}`: changes were lost;
- `{"kind": end, "reason": text}`: the last event.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from box_guest.shared.requests import MalformedMessage, boolean, printable

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

CREATED = "created"
MODIFIED = "modified"
REMOVED = "removed"
MOVED = "moved"
OVERFLOW = "overflow"
END = "end"
CHANGES = (CREATED, MODIFIED, REMOVED, MOVED)

MAX_PATH = 4096
"""Maximum length of a path, in bytes."""
MAX_WATCHES = 8192
"""Maximum number of directories of one watch."""
MAX_EVENT = 64 * 1024
"""Maximum size of the line of an event, in bytes: two paths, escaped."""
MAX_REASON = 300
"""Maximum length of the reason of the end, in characters."""


@dataclass(frozen=True, slots=True)
class FileEvent:
    """An event of a watch. `source` is the former path of a moved file; `reason` that of the end.

    Paths contain surrogate escapes for bytes that are not UTF-8.
    """

    kind: str
    path: str = ""
    is_dir: bool = False
    source: str | None = None
    reason: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the event as the messages carry it."""
        if self.kind == OVERFLOW:
            return {"kind": self.kind}
        if self.kind == END:
            return {"kind": self.kind, "reason": self.reason}
        message = {"kind": self.kind, "path": self.path, "is_dir": self.is_dir}
        return message if self.source is None else {**message, "from": self.source}


def file_event(message: Mapping[str, object]) -> FileEvent:
    """Return a checked event. Raises MalformedMessage."""
    kind = message.get("kind")
    if kind == OVERFLOW:
        return FileEvent(OVERFLOW)
    if kind == END:
        reason = message.get("reason")
        return FileEvent(END, reason=printable(str(reason), MAX_REASON))
    if not isinstance(kind, str) or kind not in CHANGES:
        raise MalformedMessage("the box sent an event of an unknown kind")
    source = watched_path(message.get("from")) if kind == MOVED else None
    path, is_dir = watched_path(message.get("path")), boolean(message.get("is_dir"))
    return FileEvent(kind, path, is_dir, source)


def watched_path(value: object) -> str:
    """Return a path. Raises MalformedMessage if it is not one, or is too long."""
    if not isinstance(value, str) or not value or "\0" in value:
        raise MalformedMessage("a path is not valid")
    try:
        size = len(value.encode("utf-8", "surrogateescape"))
    except UnicodeEncodeError:
        raise MalformedMessage("a path is not valid") from None
    if size > MAX_PATH:
        raise MalformedMessage(f"a path has {size} bytes; at most {MAX_PATH} are allowed")
    return value
