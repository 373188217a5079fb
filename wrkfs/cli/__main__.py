"""`python -m wrkfs.cli`."""

import sys

from wrkfs.cli import main

sys.exit(main())
