"""Secrets of owners as stored: always encrypted."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    from datetime import datetime

Tier: TypeAlias = Literal["account", "workspace"]
"""All workspaces of the owner, or one workspace, whose value takes precedence."""
Format: TypeAlias = Literal["text", "jsonl"]


@dataclass(frozen=True, slots=True)
class StoredSecret:
    """A variable in the environment of an owner's sessions.

    `workspace` None is the default workspace, or no workspace in tier `account`. `sealed` is the
    value, encrypted with the key file of the state directory.
    """

    owner: str
    tier: Tier
    workspace: str | None
    name: str
    sealed: bytes = field(repr=False)
    updated: datetime

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form, without the value."""
        return {
            "name": self.name,
            "tier": self.tier,
            "ws": self.workspace,
            "updated": self.updated.isoformat(),
        }


@dataclass(frozen=True, slots=True)
class Agent:
    """The program that runs an owner's tasks.

    The program gets its token, stored as `sealed`, in the environment variable `env`. `format` is
    the format of its standard output.
    """

    owner: str
    command: str
    env: str
    format: Format
    sealed: bytes = field(repr=False)
    updated: datetime

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form, without the token."""
        return {
            "cmd": self.command,
            "env": self.env,
            "format": self.format,
            "updated": self.updated.isoformat(),
        }
