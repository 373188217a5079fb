"""gVisor, the OCI runtime of these tests that is not runc. `scripts/gvisor` builds it."""

from __future__ import annotations

from pathlib import Path

import pytest

RUNSC = Path(__file__).parents[3] / ".build" / "gvisor" / "runsc"
RUNTIME = "runsc"
"""The name of the runtime in the engine."""
ARGUMENTS = ("--network=host", "--host-uds=open", "--overlay2=none")
"""Arguments that boxes need, as docs/operate/runtimes.md explains."""


def runtimes() -> dict[str, object]:
    """Return the entry `runtimes` of the engine's configuration."""
    if not RUNSC.exists():
        return {}
    return {RUNTIME: {"path": str(RUNSC), "runtimeArgs": list(ARGUMENTS)}}


def require() -> None:
    """Skip a test if gVisor is missing."""
    if not RUNSC.exists():
        pytest.skip("scripts/gvisor has built no runsc: boxes with a runtime are unproven here")
