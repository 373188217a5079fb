"""`python -m boxd`: runs the command line `boxd`."""

from __future__ import annotations

import sys

from boxd.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
