"""What every subcommand gets: its arguments and a client."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from boxd_client._sync.client import Client

if TYPE_CHECKING:
    import argparse

    from boxd_client._sync.box import Box

FAILURE = 255
"""Exit status of failures of the client or of the service; ssh has the same one."""


@dataclass
class Context:
    """The arguments of one call, and the client, which connects when it is first used."""

    args: argparse.Namespace

    @cached_property
    def client(self) -> Client:
        """Return the client."""
        return Client()

    @property
    def json(self) -> bool:
        """Return whether the output is JSON."""
        return bool(self.args.json)

    def box(self) -> Box:
        """Return the box that the arguments name."""
        return self.client.box(self.args.box)
