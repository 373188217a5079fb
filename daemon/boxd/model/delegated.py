"""A task that is done in a box for somebody: what was asked for, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

TIMEOUT_S = 3600
OUTPUT = 256 * 1024
MAX_OUTPUT = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Task:
    """One task. `prompt` is what the owner's agent reads, or without `agent` a shell command.

    It is done in the box that there is by reference `box`, else in a new one of `spec`, which goes
    afterwards unless `keep`. `max_output`: bytes of each stream that are kept, head and tail.
    """

    prompt: str
    agent: bool = False
    box: str | None = None
    spec: str | None = None
    ws: str | None = None
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    timeout_s: int = TIMEOUT_S
    max_output: int = OUTPUT
    keep: bool = False


@dataclass(frozen=True, slots=True)
class Delegated:
    """What came of a task. `box` is the reference under which it was done.

    `text` is what an agent answered; None where no agent did it. The token of the agent stands in
    none of it.
    """

    box: str
    exit_code: int
    stdout: bytes
    stderr: bytes
    text: str | None
    duration_ms: int
    truncated: bool
