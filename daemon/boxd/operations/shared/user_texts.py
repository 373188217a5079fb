"""Texts for users who are not connected by SSH."""

from __future__ import annotations

from typing import TYPE_CHECKING

from boxd.names.jump import UNNAMED_CLI, named, spelled

if TYPE_CHECKING:
    from boxd.config import Address


class UserTexts:
    """Inserts the SSH address of this service into texts.

    `ssh_host` is the address that users type; None if the operator has not configured one.
    """

    def __init__(self, ssh_host: Address | None) -> None:
        self._ssh_host = ssh_host

    def named(self, text: str) -> str:
        """Return a text whose commands are complete: `ssh cli@HOST ...`."""
        if self._ssh_host is None:
            return spelled(text, UNNAMED_CLI)
        host, port = self._ssh_host.host, self._ssh_host.port
        cli = f"ssh cli@{host}" if port == 22 else f"ssh -p {port} cli@{host}"
        return named(spelled(text, cli), host, port)
