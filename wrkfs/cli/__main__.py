"""`python -m wrkfs.cli`: runs one command on a volume."""

import sys

from wrkfs.cli import main

sys.exit(main())
