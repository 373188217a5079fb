"""The command `box` as a process: with pipes, or on a terminal."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

BOX = (sys.executable, "-m", "boxd_client")


@dataclass
class BoxCommand:
    """Runs `box` with a configuration in a directory of its own."""

    home: Path
    variables: dict[str, str] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment of the process."""
        path = f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"
        fixed = {"PATH": path, "HOME": str(self.home), "LANG": "C.UTF-8", "TERM": "xterm"}
        return fixed | self.variables

    def run(
        self, *words: str, status: int = 0, stdin: bytes = b""
    ) -> subprocess.CompletedProcess[bytes]:
        """Run the command and check its exit status."""
        done = subprocess.run(
            [*BOX, *words],
            input=stdin,
            capture_output=True,
            check=False,
            env=self.environment,
            cwd=self.home,
            timeout=120,
        )
        assert done.returncode == status, (done.stdout + done.stderr).decode("utf-8", "replace")
        return done

    def text(self, *words: str, status: int = 0, stdin: bytes = b"") -> str:
        """Return what the command prints: on stdout, or on stderr if it should fail."""
        done = self.run(*words, status=status, stdin=stdin)
        return (done.stderr if status == 255 else done.stdout).decode()
