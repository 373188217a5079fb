"""Box specs: `[workspace/]name[+][:image[:flavor]][^ttl][+grace]`, the text that may create a box.

A `+` behind the name that no digit follows asks for a fresh box; with a digit it is the grace.
The last segment of the image part is the flavor only if it is a known one, because an image
reference may hold colons itself. Names are lower case; the parser folds them, because SSH clients
fold host names too. The image keeps its case.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from boxd.errors import BadName
from boxd.names.duration import format_duration, parse_duration
from boxd.names.words import ANONYMOUS, fold, parse_name, parse_workspace, shown

if TYPE_CHECKING:
    from collections.abc import Collection
    from datetime import timedelta

MAX_SPEC = 512
"""Characters of a whole spec."""
EXAMPLE = "for example 'web', 'ws1/web' or 'web:python:small^2h+10m'"

_IMAGE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_]|[-._:/@](?![:/@]))*(?<![-._:/@])")
_DELIMITER = re.compile(r"[:^+]")


@dataclass(frozen=True, slots=True)
class BoxSpec:
    """What a spec asks for; None is "not said". A flavor never comes without an image."""

    name: str
    workspace: str | None = None
    fresh: bool = False
    image: str | None = None
    flavor: str | None = None
    ttl: timedelta | None = None
    grace: timedelta | None = None

    @property
    def anonymous(self) -> bool:
        """A throwaway box: a new one each time, with a name of the service's choice."""
        return self.name == ANONYMOUS


def parse_spec(
    text: str, flavors: Collection[str] = (), *, allow_anonymous: bool = False
) -> BoxSpec:
    """Reads a spec; `flavors` are the known ones. Raises BadName, which shows a valid example.

    `_` is read as an anonymous box only where it is allowed: it is no name.
    """
    if len(text) > MAX_SPEC:
        raise BadName(f"the box spec is {len(text)} characters long; at most {MAX_SPEC} are read")
    if not text:
        raise BadName(f"the box spec is empty; {EXAMPLE}")
    workspace, rest = _cut_workspace(text)
    delimiter = _DELIMITER.search(rest)
    end = delimiter.start() if delimiter else len(rest)
    name, rest = rest[:end], rest[end:]
    if not (allow_anonymous and name == ANONYMOUS):
        name = parse_name(name)
    fresh = rest.startswith("+") and not rest[1:2].isdecimal()
    image, flavor, rest = _cut_image(rest[1:] if fresh else rest, flavors)
    ttl, grace = _lifetimes(rest)
    return BoxSpec(name, workspace, fresh, image, flavor, ttl, grace)


def format_spec(spec: BoxSpec) -> str:
    """The text that `parse_spec` reads back as `spec`."""
    parts = [spec.name if spec.workspace is None else f"{spec.workspace}/{spec.name}"]
    if spec.fresh:
        parts.append("+")
    parts.extend(f":{part}" for part in (spec.image, spec.flavor) if part is not None)
    if spec.ttl is not None:
        parts.append(f"^{format_duration(spec.ttl)}")
    if spec.grace is not None:
        parts.append(f"+{format_duration(spec.grace)}")
    return "".join(parts)


def _cut_workspace(text: str) -> tuple[str | None, str]:
    """The workspace is before the first `/` that stands before the first `:`."""
    head, slash, tail = text.partition("/")
    if not slash or ":" in head:
        return None, text
    return parse_workspace(head), tail


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
        raise BadName(f"unexpected {shown(head)} behind the name; {EXAMPLE}")
    if "^" in grace:
        raise BadName("^ttl stands before +duration: 'web^2h+10m'")
    return (
        parse_duration(head[1:], "deadline '^ttl'") if head else None,
        parse_duration(grace, "grace '+duration'") if plus else None,
    )
