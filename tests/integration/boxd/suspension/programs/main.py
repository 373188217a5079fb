"""Runs the program whose name is its argument."""

from __future__ import annotations

import sys

from tests.integration.boxd.suspension.programs import (
    browsers,
    databases,
    runtimes,
    services,
    terminals,
)
from tests.integration.boxd.suspension.programs.load import run

MODULES = (browsers, databases, runtimes, services, terminals)
"""Their import registers the programs."""


def main() -> None:
    """Run the named program."""
    run(sys.argv[1])
