"""Box specs: `[workspace/]name[+][!][:image[:flavor]][^ttl][+grace]`. A spec can create a box.

Two marks can follow the name, in either order. A `+` requests a fresh box, unless a digit follows:
then it starts the grace period. A `!` makes the box durable.

The last segment of the image part is a flavor only if a flavor of that name exists, because image
references can contain colons. The parser folds names to lower case, as SSH clients fold host names.
The image keeps its case.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from boxd.errors import BadName
from boxd.names.duration import parse_duration
from boxd.names.words import ANONYMOUS, fold, parse_name, parse_workspace, shown

if TYPE_CHECKING:
    from collections.abc import Collection
    from datetime import timedelta

MAX_SPEC = 512
"""Maximum length of a whole spec, in characters."""
EXAMPLE = "for example 'web', 'ws1/web' or 'web:python:small^2h+10m'"

_IMAGE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_]|[-._:/@](?![:/@]))*(?<![-._:/@])")
_DELIMITER = re.compile(r"[:^+!]")
_FRESH, _DURABLE = "+", "!"
"""Marks that can follow the name."""


@dataclass(frozen=True, slots=True)
class BoxSpec:
    """A parsed spec. None means that the spec omits the value. A flavor requires an image."""

    name: str
    workspace: str | None = None
    fresh: bool = False
    durable: bool = False
    image: str | None = None
    flavor: str | None = None
    ttl: timedelta | None = None
    grace: timedelta | None = None

    @property
    def anonymous(self) -> bool:
        """Whether the spec requests a throwaway box: a new one each time, with a generated name."""
        return self.name == ANONYMOUS


def parse_spec(
    text: str, flavors: Collection[str] = (), *, allow_anonymous: bool = False
) -> BoxSpec:
    """Parse a spec. `flavors` are the existing flavors. Raises BadName with a valid example.

    `_` is not a name. It means an anonymous box if `allow_anonymous` is true.
    """
    if len(text) > MAX_SPEC:
        raise BadName(f"the box spec is {len(text)} characters long; the limit is {MAX_SPEC}")
    if not text:
        raise BadName(f"the box spec is empty; {EXAMPLE}")
    workspace, rest = _cut_workspace(text)
    delimiter = _DELIMITER.search(rest)
    end = delimiter.start() if delimiter else len(rest)
    name, rest = rest[:end], rest[end:]
    if not (allow_anonymous and name == ANONYMOUS):
        name = parse_name(name)
    fresh, durable, rest = _cut_marks(rest)
    if durable and name == ANONYMOUS:
        raise BadName(
            "a throwaway box cannot be durable: it ends with its last session; give the box a name,"
            " for example 'web!'"
        )
    image, flavor, rest = _cut_image(rest, flavors)
    ttl, grace = _lifetimes(rest)
    return BoxSpec(name, workspace, fresh, durable, image, flavor, ttl, grace)


def _cut_workspace(text: str) -> tuple[str | None, str]:
    """Split off the workspace: the part before the first `/`, if no `:` precedes it."""
    head, slash, tail = text.partition("/")
    if not slash or ":" in head:
        return None, text
    return parse_workspace(head), tail


def _cut_marks(text: str) -> tuple[bool, bool, str]:
    """Split off the marks after the name: whether the box is fresh, and durable; and the rest."""
    marks: set[str] = set()
    while (mark := text[:1]) in (_FRESH, _DURABLE):
        if mark == _FRESH and (mark in marks or text[1:2].isdecimal()):
            break  # the start of a grace period
        if mark in marks:
            raise BadName("'!' occurs twice; one makes the box durable: 'web!'")
        marks.add(mark)
        text = text[1:]
    if _DURABLE in text:
        raise BadName("'!' must follow the name directly: 'web!', 'web!:debian' or 'web!^2h+10m'")
    return _FRESH in marks, _DURABLE in marks, text


def _cut_image(text: str, flavors: Collection[str]) -> tuple[str | None, str | None, str]:
    if not text.startswith(":"):
        return None, None, text
    end = min((at for at in (text.find("^"), text.find("+")) if at >= 0), default=len(text))
    image, rest = text[1:end], text[end:]
    head, colon, last = image.rpartition(":")
    flavor = fold(last) if colon and fold(last) in flavors else None
    if flavor is not None:
        image = head
    if not image:
        raise BadName(
            "the image after ':' is missing; a flavor follows an image: 'web:debian:small'"
        )
    if _IMAGE.fullmatch(image) is None:
        raise BadName(f"image {shown(image)} is not valid; for example 'web:python'")
    return image, flavor, rest


def _lifetimes(text: str) -> tuple[timedelta | None, timedelta | None]:
    head, plus, grace = text.partition("+")
    if head and not head.startswith("^"):
        raise BadName(f"unexpected {shown(head)} after the name; {EXAMPLE}")
    if "^" in grace:
        raise BadName("^ttl must precede +duration: 'web^2h+10m'")
    return (
        parse_duration(head[1:], "deadline '^ttl'", clamps=True) if head else None,
        parse_duration(grace, "grace '+duration'") if plus else None,
    )
