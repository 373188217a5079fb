"""Encode large JSON documents in a thread, one document at a time.

A thread that encodes a long string in one step holds the interpreter lock and stops all other
threads. So the thread encodes a document in slices.
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
"""Documents with more characters than this are encoded in the thread."""
SLICE = 64 * 1024
"""Characters encoded in one step. A step takes less than a millisecond."""
YIELD_S = 0.0002
"""Pause after each slice. Without it the event loop waits 5 ms for each of its turns."""

READABLE = json.JSONEncoder(ensure_ascii=False)
"""The form for people and models."""
COMPACT = json.JSONEncoder(separators=(",", ":"))
"""The form of a protocol message: ASCII, in one line."""

_worker = ThreadPoolExecutor(1, thread_name_prefix="mcp json")


async def encode_document(document: dict[str, Any], encoder: json.JSONEncoder) -> str:
    """Return the JSON text of a document. All keys must be strings."""
    if not is_longer(document, LARGE):
        return encoder.encode(document)
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(_worker, _encode_in_slices, document, encoder)


def is_longer(value: object, size: int) -> bool:
    """Return whether a document has more than `size` characters. The answer is an estimate."""
    return _remaining(value, size) < 0


def _remaining(value: object, size: int) -> int:
    """Return `size` minus the characters of a value; stop counting when it is negative."""
    if isinstance(value, str):
        return size - len(value)
    if isinstance(value, dict):
        for key, item in value.items():
            if (size := _remaining(item, size - len(key))) < 0:
                break
        return size
    if isinstance(value, list):
        for item in value:
            if (size := _remaining(item, size)) < 0:
                break
        return size
    return size - 1


def _encode_in_slices(document: dict[str, Any], encoder: json.JSONEncoder) -> str:
    pieces: list[str] = []
    since_pause = 0
    for piece in encoded_pieces(document, encoder):
        pieces.append(piece)
        since_pause += len(piece)
        if since_pause >= SLICE:
            since_pause = 0
            time.sleep(YIELD_S)
    return "".join(pieces)


def encoded_pieces(value: object, encoder: json.JSONEncoder) -> Iterator[str]:
    """Yield the JSON text of a document in pieces. Each piece takes little time to encode."""
    if not is_longer(value, SLICE):
        yield encoder.encode(value)
    elif isinstance(value, str):
        yield '"'
        for start in range(0, len(value), SLICE):
            yield encoder.encode(value[start : start + SLICE])[1:-1]
        yield '"'
    elif isinstance(value, dict):
        prefix = "{"
        for key, item in value.items():
            yield prefix + encoder.encode(key) + encoder.key_separator
            yield from encoded_pieces(item, encoder)
            prefix = encoder.item_separator
        yield "}"
    elif isinstance(value, list):
        prefix = "["
        for item in value:
            yield prefix
            yield from encoded_pieces(item, encoder)
            prefix = encoder.item_separator
        yield "]"
