"""Fingerprints, and boxes of anybody, as administrators type them."""

from __future__ import annotations

import pytest

from boxd.errors import BadName
from boxd.names.fingerprint import parse_fleet_reference, parse_owner
from boxd.names.reference import Reference

OWNER = "SHA256:" + "aB3+/" * 8 + "xyz"


def test_owners() -> None:
    assert parse_owner(OWNER) == OWNER


@pytest.mark.parametrize(
    "text", ["", "web", OWNER[:-1], OWNER + "=", OWNER + "\n", OWNER.lower(), "MD5:00:11"]
)
def test_other_texts_are_no_owners(text: str) -> None:
    with pytest.raises(BadName, match="fingerprint"):
        parse_owner(text)


@pytest.mark.parametrize(
    ("text", "owner", "reference"),
    [
        ("0F3a", None, Reference(None, "0f3a", "0f3a")),
        ("0" * 32, None, Reference(None, "0" * 32, "0" * 32)),
        (f"{OWNER}:web", OWNER, Reference(None, "web", None)),
        (f"{OWNER}:ws/cafe", OWNER, Reference("ws", "cafe", None)),
        (f"{OWNER}:cafe", OWNER, Reference(None, "cafe", "cafe")),
    ],
)
def test_boxes_of_anybody(text: str, owner: str | None, reference: Reference) -> None:
    assert parse_fleet_reference(text) == (owner, reference)


@pytest.mark.parametrize(
    "text", ["", "web", "ws/cafe", OWNER, f"{OWNER}:", f"{OWNER}:a b", f"{OWNER[:-1]}:web", "a:b"]
)
def test_what_names_no_box(text: str) -> None:
    with pytest.raises(BadName):
        parse_fleet_reference(text)
