"""The program that sanitises documents, as a process."""

from __future__ import annotations

import asyncio
import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from boxd.http.routes import page
from boxd.rendering import program, sanitise
from tests.harness.wait import until

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def files(document: bytes) -> Iterator[tuple[int, int]]:
    """Yield a file with a document, and one for the output."""
    descriptors = os.memfd_create("document"), os.memfd_create("output")
    os.write(descriptors[0], document)
    os.lseek(descriptors[0], 0, os.SEEK_SET)
    try:
        yield descriptors
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


async def test_a_document_becomes_harmless_html() -> None:
    with files(b"markdown\n# One <script>") as (document, output):
        assert await program.run(document, output) == 0
        assert os.pread(output, 1000, 0) == b"<h1>One &lt;script&gt;</h1>\n"


async def test_an_unknown_kind_fails() -> None:
    with files(b"pdf\n%PDF") as (document, output):
        assert await program.run(document, output) not in (0, sanitise.TOO_LARGE)
        assert os.pread(output, 1000, 0) == b""


async def test_a_long_output_is_refused() -> None:
    text = b"html\n" + b"<p>text</p>" * (sanitise.MAX_OUTPUT // 11 + 1)
    with files(text) as (document, output):
        assert await program.run(document, output) == sanitise.TOO_LARGE
        assert os.fstat(output).st_size == 0


async def test_a_cancellation_kills_the_program() -> None:
    reader, writer = os.pipe()  # the program waits for its document
    null = os.open(os.devnull, os.O_WRONLY)
    others = _children()
    try:
        running = asyncio.create_task(program.run(reader, null))
        await until(lambda: _children() - others)
        started = _children() - others
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert not started & _children()
    finally:
        for descriptor in (reader, writer, null):
            os.close(descriptor)


def test_the_page_reads_as_much_as_the_program_may_write() -> None:
    """The program imports nothing from the service, so both have the number."""
    assert page.MAX_OUTPUT == sanitise.MAX_OUTPUT


def _children() -> set[int]:
    task = Path(f"/proc/self/task/{os.getpid()}/children")
    return {int(pid) for pid in task.read_text().split()}
