"""A delegated task that runs in a box: the request and the result."""

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
    """One task. `prompt` is the input of the owner's agent, or without `agent` a shell command.

    The task runs in the existing box `box`, or in a new box of `spec`, which is removed afterwards
    unless `keep` is true. `max_output` is the number of bytes of each stream in the result: the
    head and the tail.
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
    """The result of a task. `box` is the reference of the box that ran it.

    `text` is the answer of the agent; None without an agent. No field contains the agent's token.
    """

    box: str
    exit_code: int
    stdout: bytes
    stderr: bytes
    text: str | None
    duration_ms: int
    truncated: bool
