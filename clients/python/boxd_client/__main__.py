"""`python -m boxd_client`: the command `box`."""

from __future__ import annotations

import sys

from boxd_client.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
