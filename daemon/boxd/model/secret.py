"""What owners entrust to the service, as stored: never in clear."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from datetime import datetime

Tier: TypeAlias = Literal["account", "workspace"]
"""In all workspaces of the owner, or in one; there the workspace's wins."""
Format: TypeAlias = Literal["text", "jsonl"]


@dataclass(frozen=True, slots=True)
class StoredSecret:
    """A variable in the environment of an owner's sessions.

    `workspace` None is the default workspace, or none at all in tier `account`. `sealed` is the
    value, encrypted with the key file of the state directory.
    """

    owner: str
    tier: Tier
    workspace: str | None
    name: str
    sealed: bytes = field(repr=False)
    updated: datetime


@dataclass(frozen=True, slots=True)
class Agent:
    """The program that does an owner's tasks. Its token, `sealed`, is given to it as variable
    `env`; `format` is that of its stdout."""

    owner: str
    command: str
    env: str
    format: Format
    sealed: bytes = field(repr=False)
    updated: datetime
