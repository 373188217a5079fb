"""The front door, as texts name it: the way into confidential boxes, commands of the CLI. Pure."""

from __future__ import annotations

UNNAMED = "jump@HOST"
"""What texts say where nobody knows by what name users reach the front door."""
UNNAMED_CLI = "ssh cli@HOST"
"""The same, of the CLI."""


def named(text: str, host: str, port: int) -> str:
    """A text in which the front door is called by its name."""
    bracketed = f"[{host}]" if ":" in host else host
    return text.replace(UNNAMED, f"jump@{bracketed}" + ("" if port == 22 else f":{port}"))


def spelled(text: str, cli: str) -> str:
    """A text that ends in a command of the CLI (`; see: ls`), for who is not in it; `cli` is what
    has to be typed before the command."""
    head, see, command = text.rpartition("; see: ")
    return f"{head}{see}{cli} {command}" if see else text
