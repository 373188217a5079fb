"""The commands `boxd doctor` and `boxd openapi`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from boxd.cli.printing import print_table

if TYPE_CHECKING:
    import argparse

    from boxd.config import Config


def doctor(config: Config, arguments: argparse.Namespace) -> int:
    """Print the checks of this host as a table; return 1 if a required check fails, else 0."""
    from boxd import doctor as host

    del arguments
    checks = [*host.checks(config), host.suspending(config)]
    rows = [("CHECK", "", "FOUND", "REMEDY")]
    for check in checks:
        word = "ok" if check.ok else "FAILS" if check.needed else "warn"
        rows.append((check.name, word, check.finding, "" if check.ok else check.remedy))
    print_table(rows)
    return 1 if any(check.needed and not check.ok for check in checks) else 0


def openapi(config: Config, arguments: argparse.Namespace) -> int:
    """Print the OpenAPI document of the HTTP API with all optional routes; return 0."""
    from boxd.http.openapi.document import document, text

    del config, arguments
    print(text(document()), end="")
    return 0
