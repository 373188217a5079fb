"""Accounts of the box, read from its own /etc/passwd and /etc/group.

This module parses the files itself: the image's name services belong to a different C library than
that of the guest runtime.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

FALLBACK_SHELL = "/bin/sh"
"""Shell of an account that names none."""


@dataclass(frozen=True, slots=True)
class Account:
    """One line of /etc/passwd, with the supplementary groups of /etc/group."""

    name: str
    uid: int
    gid: int
    home: str
    shell: str
    groups: tuple[int, ...]


def find(user: str, etc: Path = Path("/etc")) -> Account:
    """Return the account with this name, or root with /bin/sh if the box has no such account."""
    for fields in _records(etc / "passwd", 7):
        if fields[0] == user and fields[2].isdigit() and fields[3].isdigit():
            return Account(
                name=user,
                uid=int(fields[2]),
                gid=int(fields[3]),
                home=fields[5] or "/",
                shell=fields[6] or FALLBACK_SHELL,
                groups=_groups(user, etc),
            )
    return Account("root", 0, 0, "/root", FALLBACK_SHELL, ())


def _groups(user: str, etc: Path) -> tuple[int, ...]:
    return tuple(
        int(fields[2])
        for fields in _records(etc / "group", 4)
        if fields[2].isdigit() and user in fields[3].split(",")
    )


def _records(path: Path, size: int) -> list[list[str]]:
    """Return the lines of a colon-separated file that have exactly `size` fields.

    Returns [] if the file is unreadable.
    """
    try:
        text = path.read_text("utf-8", "surrogateescape")
    except OSError:
        return []
    records = (line.split(":") for line in text.splitlines())
    return [fields for fields in records if len(fields) == size]
