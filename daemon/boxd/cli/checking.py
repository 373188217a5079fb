"""`boxd doctor`."""

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
