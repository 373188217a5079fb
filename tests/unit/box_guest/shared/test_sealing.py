"""What is sealed opens once, with the right key, for the right purpose and box, and unchanged."""

from __future__ import annotations

import pytest

from box_guest.shared.sealing import HANDOVER, Opener, SealBroken, seal

TEXT = b"the token of an agent"
FOR = {"purpose": HANDOVER, "box_id": "b0" * 16}


def test_it_opens_for_whom_it_was_sealed() -> None:
    for text in (TEXT, b"", bytes(1 << 20)):
        opener = Opener()
        sealed = seal(text, opener.public, **FOR)
        assert opener.open(sealed, **FOR) == text


def test_what_is_sealed_shows_nothing_and_is_never_the_same() -> None:
    opener = Opener()
    one, other = (seal(TEXT, opener.public, **FOR) for _ in range(2))
    assert TEXT not in one
    assert one != other
    assert Opener().public != Opener().public


def test_another_key_does_not_open_it() -> None:
    sealed = seal(TEXT, Opener().public, **FOR)
    with pytest.raises(SealBroken):
        Opener().open(sealed, **FOR)


@pytest.mark.parametrize(
    "other", [{**FOR, "purpose": "another"}, {**FOR, "box_id": "b1" * 16}, {**FOR, "box_id": ""}]
)
def test_it_is_for_one_purpose_and_box(other: dict[str, str]) -> None:
    opener = Opener()
    with pytest.raises(SealBroken):
        opener.open(seal(TEXT, opener.public, **other), **FOR)


def test_nothing_of_it_can_be_altered_or_cut() -> None:
    size = len(seal(TEXT, Opener().public, **FOR))
    for place in range(size):
        opener = Opener()
        sealed = bytearray(seal(TEXT, opener.public, **FOR))
        # Not the highest bit: that of a public key is no part of it, and is bound all the same.
        sealed[place] ^= 1
        with pytest.raises(SealBroken):
            opener.open(bytes(sealed), **FOR)
    for rest in (b"", b"x" * 31, b"x" * 32, b"x" * 48):
        with pytest.raises(SealBroken):
            Opener().open(rest, **FOR)
    opener = Opener()
    sealed = bytearray(seal(TEXT, opener.public, **FOR))
    sealed[31] ^= 0x80
    with pytest.raises(SealBroken):
        opener.open(bytes(sealed), **FOR)


def test_a_key_opens_one_text() -> None:
    opener = Opener()
    sealed = seal(TEXT, opener.public, **FOR)
    assert opener.open(sealed, **FOR) == TEXT
    with pytest.raises(SealBroken, match="already opened a text"):
        opener.open(sealed, **FOR)
    opener = Opener()
    with pytest.raises(SealBroken):
        opener.open(b"wrong", **FOR)
    with pytest.raises(SealBroken, match="already opened a text"):
        opener.open(seal(TEXT, opener.public, **FOR), **FOR)


@pytest.mark.parametrize("public", [b"", bytes(31), bytes(32), b"\1" + bytes(31)])
def test_nothing_is_sealed_to_what_is_no_key(public: bytes) -> None:
    """Two of them are points at which every secret is the same."""
    with pytest.raises(ValueError, match=r"32 bytes|shared key"):
        seal(TEXT, public, **FOR)
