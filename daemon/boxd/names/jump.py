"""Placeholders for the SSH server's address in texts, and functions that fill them in.

The texts show the way into confidential boxes and commands of the CLI.
"""

from __future__ import annotations

UNNAMED = "jump@HOST"
"""The jump host in texts, before the address that users type is known."""
UNNAMED_CLI = "ssh cli@HOST"
"""The CLI in texts, before the address that users type is known."""


def named(text: str, host: str, port: int) -> str:
    """Return the text with the SSH server's address in place of the placeholder."""
    bracketed = f"[{host}]" if ":" in host else host
    return text.replace(UNNAMED, f"jump@{bracketed}" + ("" if port == 22 else f":{port}"))


def spelled(text: str, cli: str) -> str:
    """Return a text that ends in a CLI command (`; see: ls`) with the command as a shell takes it.

    `cli` is the part before the command, for example `ssh cli@HOST`.
    """
    head, see, command = text.rpartition("; see: ")
    return f"{head}{see}{cli} {command}" if see else text
