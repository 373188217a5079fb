"""Text that is made in slices is the same, and is made beside the loop."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest

from boxd.mcp.messages import encoding
from boxd.mcp.messages.encoding import (
    COMPACT,
    LARGE,
    READABLE,
    SLICE,
    encode_document,
    encoded_pieces,
    is_longer,
)

ODD = 'line\n"\\/\x00\x1f\x7f é \u2028 \ud800 \U0001f600'
DOCUMENTS: list[dict[str, Any]] = [
    {},
    {"data": ODD * 30_000, "n": 1, "eof": True, "none": None, "x": 1.5},
    {ODD: {"deep": [ODD * 10_000, [], {}, "", 3]}, "last": ["a"] * LARGE},
    {"entries": [{"name": ODD, "is_dir": False, "size": n} for n in range(20_000)]},
    {"twice": json.dumps({"data": ODD * 20_000}), "empty": []},
]


@pytest.mark.parametrize("document", DOCUMENTS)
async def test_it_is_the_same(document: dict[str, Any]) -> None:
    plain = json.dumps(document, ensure_ascii=False)
    assert await encode_document(document, READABLE) == plain
    assert await encode_document(document, COMPACT) == json.dumps(document, separators=(",", ":"))


@pytest.mark.parametrize("encoder", [READABLE, COMPACT])
def test_no_slice_is_long(encoder: json.JSONEncoder) -> None:
    found = list(encoded_pieces(DOCUMENTS[1], encoder))
    # A character outside the basic plane becomes twelve.
    assert max(len(piece) for piece in found) <= 12 * SLICE
    assert len(found) > len(ODD) * 30_000 // SLICE


@pytest.mark.parametrize(("size", "beside"), [(LARGE - 100, False), (LARGE + 1, True)])
async def test_only_large_ones_leave_the_loop(
    size: int, beside: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[threading.Thread] = []
    made = encoding._encode_in_slices

    def watched(document: dict[str, Any], encoder: json.JSONEncoder) -> str:
        threads.append(threading.current_thread())
        return made(document, encoder)

    monkeypatch.setattr(encoding, "_encode_in_slices", watched)
    await encode_document({"data": "x" * size}, COMPACT)
    assert [one is not threading.current_thread() for one in threads] == [True] * beside


def test_a_look_counts_all_that_is_text() -> None:
    document = {"abc": ["de", {"f": "ghi"}], "n": 1}
    assert is_longer(document, 10)
    assert not is_longer(document, 11)
