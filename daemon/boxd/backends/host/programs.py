"""Programs that the service brings with it, because Debian 12 has none or only an older version."""

from __future__ import annotations

import sys
from pathlib import Path

_TREE = Path(__file__).resolve().parents[4]


def unpacked(name: str) -> Path:
    """Return the directory of a program.

    The Debian package has it beside its virtual environment. In a source tree, the setup unpacks it
    into `.build`.
    """
    packaged = Path(sys.prefix, "programs", name)
    return packaged if packaged.is_dir() else _TREE / ".build" / name
