"""`make audit` says that it was skipped if the database of vulnerabilities cannot be reached."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def test_an_audit_without_the_database_is_skipped(tmp_path: Path) -> None:
    nowhere = "http://127.0.0.1:1"
    done = subprocess.run(
        [sys.executable, "-m", "scripts.audit"],
        env=os.environ
        | {"HTTPS_PROXY": nowhere, "HTTP_PROXY": nowhere, "XDG_CACHE_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=55,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "audit: SKIPPED" in done.stderr
    assert "checked" not in done.stdout
