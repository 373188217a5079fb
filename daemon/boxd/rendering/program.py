"""Starts the program that sanitises a document, in its sandbox."""

from __future__ import annotations

import asyncio
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from boxd.subprocesses import kill

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from boxd.sandbox.sandbox import Sandbox

Run: TypeAlias = "Callable[[int, int], Awaitable[int]]"
"""Runs the program with two descriptors, its input and its output; returns its exit status."""
_PROGRAM = str(Path(__file__).with_name("sanitise.py"))


async def run(document: int, output: int, *, sandbox: Sandbox | None = None) -> int:
    """Run the program until it ends; return its exit status.

    The file `document` has a line with its kind, `markdown` or `html`, and then the document. The
    program writes to the file `output`. Without a `sandbox`, it has the rights of this process. A
    cancellation kills it. Raises OSError.
    """
    with ExitStack() as stack:
        command = [sys.executable, "-I", _PROGRAM]
        descriptors: tuple[int, ...] = ()
        if sandbox is not None:
            command, settings = stack.enter_context(sandbox.command(command))
            descriptors = (settings,)
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=document,
            stdout=output,
            stderr=asyncio.subprocess.DEVNULL,
            env={},
            pass_fds=descriptors,
        )
    try:
        return await process.wait()
    finally:
        kill(process)
        await process.wait()
