"""JSON of large documents is made beside the loop, one at a time.

A thread that makes one long string in one step keeps all other threads from running for as long,
so it is made in slices.
"""

from __future__ import annotations

import asyncio
import json
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

LARGE = 256 * 1024
"""Characters of a document from which on the loop does not make its text."""
SLICE = 64 * 1024
"""Characters that are made in one step, which takes less than a millisecond."""
HANDOVER_S = 0.0002
"""After each slice: else the loop waits 5 ms for each of its turns."""

READABLE = json.JSONEncoder(ensure_ascii=False)
"""As people write it."""
COMPACT = json.JSONEncoder(separators=(",", ":"))
"""One message of the protocol."""

_worker = ThreadPoolExecutor(1, thread_name_prefix="mcp json")


async def text_of(document: dict[str, Any], encoder: json.JSONEncoder) -> str:
    """What the encoder makes of a document, whose keys are strings."""
    if not longer(document, LARGE):
        return encoder.encode(document)
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(_worker, _made, document, encoder)


def longer(value: object, size: int) -> bool:
    """Whether a document has more characters than `size`, as far as that shows at a look."""
    return _left(value, size) < 0


def _left(value: object, size: int) -> int:
    """What is left of `size`; below zero it does not look on."""
    if isinstance(value, str):
        return size - len(value)
    if isinstance(value, dict):
        for key, item in value.items():
            if (size := _left(item, size - len(key))) < 0:
                break
        return size
    if isinstance(value, list):
        for item in value:
            if (size := _left(item, size)) < 0:
                break
        return size
    return size - 1


def _made(document: dict[str, Any], encoder: json.JSONEncoder) -> str:
    found: list[str] = []
    waiting = 0
    for piece in pieces(document, encoder):
        found.append(piece)
        waiting += len(piece)
        if waiting >= SLICE:
            waiting = 0
            time.sleep(HANDOVER_S)
    return "".join(found)


def pieces(value: object, encoder: json.JSONEncoder) -> Iterator[str]:
    """What the encoder makes of a document, in pieces of which each is soon made."""
    if not longer(value, SLICE):
        yield encoder.encode(value)
    elif isinstance(value, str):
        yield '"'
        for start in range(0, len(value), SLICE):
            yield encoder.encode(value[start : start + SLICE])[1:-1]
        yield '"'
    elif isinstance(value, dict):
        before = "{"
        for key, item in value.items():
            yield before + encoder.encode(key) + encoder.key_separator
            yield from pieces(item, encoder)
            before = encoder.item_separator
        yield "}"
    elif isinstance(value, list):
        before = "["
        for item in value:
            yield before
            yield from pieces(item, encoder)
            before = encoder.item_separator
        yield "]"
