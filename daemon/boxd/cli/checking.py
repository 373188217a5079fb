"""`boxd doctor` and `boxd openapi`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from boxd.cli.printing import print_table

if TYPE_CHECKING:
    import argparse

    from boxd.config import Config


def doctor(config: Config, arguments: argparse.Namespace) -> int:
    """What this host can and cannot do, as a table; 1 when something needed is missing."""
    from boxd import doctor as host

    del arguments
    found = [*host.checks(config), host.suspending(config)]
    rows = [("CHECK", "", "FOUND", "REMEDY")]
    for check in found:
        word = "ok" if check.ok else "FAILS" if check.needed else "warn"
        rows.append((check.name, word, check.found, "" if check.ok else check.remedy))
    print_table(rows)
    return 1 if any(check.needed and not check.ok for check in found) else 0


def openapi(config: Config, arguments: argparse.Namespace) -> int:
    """Prints the OpenAPI document of all that can be served; 0."""
    from boxd.api.openapi import document, text

    del config, arguments
    print(text(document()), end="")
    return 0
