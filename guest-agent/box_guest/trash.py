"""The command `box-guest trash`: list removed files of the drive, and restore them.

Uses the standard library only, as `box_guest.cli` does. The agent accepts the requests from root.
"""

from __future__ import annotations

import argparse
import contextlib
import os
from typing import TYPE_CHECKING, Any

from box_guest import protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Send = Callable[[dict[str, Any]], dict[str, Any]]

DEFAULT_LIMIT = 1000
"""Number of entries that `ls` lists, unless `--limit` says otherwise."""
MAX_LIMIT = 10**6
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def add_parser(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], late: argparse.ArgumentParser
) -> None:
    """Add the command `trash` with its verbs; `late` defines the options of every command."""
    trash = commands.add_parser(
        "trash", parents=[late], help="list and restore removed files of the drive (root only)"
    )
    verbs = trash.add_subparsers(dest="verb", required=True, metavar="VERB")
    listing = verbs.add_parser(
        "ls", parents=[late], help="list removed files and directories, the newest first"
    )
    listing.add_argument(
        "path",
        nargs="?",
        type=drive_path,
        metavar="PATH",
        help=f"list only entries at or below this path in {protocol.DRIVE_DIR}",
    )
    listing.add_argument(
        "--limit",
        type=_limit,
        default=DEFAULT_LIMIT,
        metavar="N",
        help=f"maximum number of entries (default: {DEFAULT_LIMIT})",
    )
    listing.set_defaults(request=protocol.TRASH_LIST, run=_list, lines=_listed)
    restoring = verbs.add_parser(
        "restore",
        parents=[late],
        help="restore a file, or a directory with everything that was removed from it",
    )
    entry = restoring.add_mutually_exclusive_group(required=True)
    entry.add_argument(
        "path", nargs="?", type=drive_path, metavar="PATH", help="the former path of the entry"
    )
    entry.add_argument(
        "--number", type=_number, metavar="N", help="restore the entry that `ls` lists as N"
    )
    restoring.add_argument(
        "--to",
        type=drive_path,
        metavar="PATH",
        help="restore to this path instead of the former one; its directory must exist",
    )
    restoring.set_defaults(request=protocol.TRASH_RESTORE, run=_restore, lines=_restored)


def drive_path(text: str) -> str:
    """Return a path relative to the drive; `text` is absolute or relative to the directory.

    Bytes that are not UTF-8 become surrogate escapes. Raises ArgumentTypeError outside the drive.
    """
    top = os.fspath(protocol.DRIVE_DIR)
    try:
        path = os.path.normpath(text if os.path.isabs(text) else os.path.join(os.getcwd(), text))
    except FileNotFoundError:
        raise argparse.ArgumentTypeError(
            f"the working directory was removed; give an absolute path below {top}"
        ) from None
    path = "/" + path.lstrip("/")  # normpath keeps two leading slashes
    if path != top and not path.startswith(f"{top}/"):
        raise argparse.ArgumentTypeError(f"{text!r} is not on the drive; give a path below {top}")
    return os.fsencode(path[len(top) + 1 :]).decode("utf-8", "surrogateescape")


def _limit(text: str) -> int:
    return _whole(text, MAX_LIMIT, f"the limit must be 1 to {MAX_LIMIT}")


def _number(text: str) -> int:
    return _whole(text, protocol.MAX_NUMBER, "the number of an entry is in the first column of ls")


def _whole(text: str, maximum: int, message: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 18 and 1 <= int(text) <= maximum):
        raise argparse.ArgumentTypeError(message)
    return int(text)


def _list(options: argparse.Namespace, send: Send) -> dict[str, Any]:
    """Read pages until the limit is reached; `complete` is false if there are more entries."""
    _sync_names()
    entries: list[dict[str, Any]] = []
    cursor: str | None = None
    while True:
        limit = min(protocol.MAX_PAGE, options.limit - len(entries))
        page = send({"path": options.path or "", "cursor": cursor, "limit": limit})
        entries += [{**one, "path": _full(one.get("path"))} for one in page.get("entries", ())]
        cursor = page.get("cursor")
        if cursor is None or len(entries) >= options.limit:
            return {"entries": entries, "complete": cursor is None}


def _restore(options: argparse.Namespace, send: Send) -> dict[str, Any]:
    _sync_names()
    fields = {"path": options.path, "number": options.number, "to": options.to}
    result = send(fields)
    missing = [[_full(path), reason] for path, reason in result.get("missing", ())]
    return {**result, "path": _full(result.get("path")), "missing": missing}


def _sync_names() -> None:
    """Make the mount send the removals that it has answered, so that the service sees them.

    Does nothing if the drive is not mounted or not available; the service then reports its state.
    """
    with contextlib.suppress(OSError):
        descriptor = os.open(protocol.DRIVE_DIR, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _listed(result: dict[str, Any]) -> Iterator[str]:
    for one in result["entries"]:
        time = str(one.get("deleted", ""))[:19].replace("T", " ")
        path = one["path"]
        if path is None:
            path = f"(unknown directory)/{one.get('name')}"
        yield f"{one.get('number', ''):>10}  {time}  {_size(one):>10}  {_safe(path)}"
    if not result["complete"]:
        yield "more entries exist; give a PATH, or a larger --limit"


def _restored(result: dict[str, Any]) -> Iterator[str]:
    files, directories = result.get("files"), result.get("directories")
    yield f"{_safe(str(result['path']))} restored; files: {files}, directories: {directories}"
    for path, reason in result["missing"]:
        yield f"not restored, {reason}: {_safe(str(path))}"
    unlisted = int(result.get("missing_count", 0)) - len(result["missing"])
    if unlisted > 0:
        yield f"not restored: {unlisted} more"
    earlier = int(result.get("earlier_count", 0))
    if earlier:
        yield f"further names that stay in the trash, because they were removed earlier: {earlier}"


def _full(path: object) -> str | None:
    """Return the path in the box of a path on the drive."""
    return None if path is None else f"{protocol.DRIVE_DIR}/{path}"


def _safe(path: str) -> str:
    """Return a path without characters that control a terminal."""
    return path if path.isprintable() else repr(path)


def _size(entry: dict[str, Any]) -> str:
    if entry.get("is_dir") or entry.get("is_link"):
        return "directory" if entry.get("is_dir") else "link"
    size, unit = float(entry.get("size", 0)), 0
    while size >= 1024 and unit < len(_UNITS) - 1:
        size, unit = size / 1024, unit + 1
    return f"{size:.1f} {_UNITS[unit]}" if unit else f"{size:.0f} B"
