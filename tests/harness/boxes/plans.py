"""A plan of a box, and facts of a host, for OCI bundles."""

from __future__ import annotations

from pathlib import Path

from boxd.backends.interface import BoxPlan
from boxd.backends.oci import bundle

PLAN = BoxPlan(
    box_id="ab" * 16,
    hostname="dev",
    image="debian",
    rootfs=Path("/images/debian"),
    runtime=Path("/runtime/1"),
    run_dir=Path("/boxes/x/run"),
    cpus=1.5,
    mem_mb=512,
    pids=99,
    egress="all",
)
PLACES = bundle.Places(
    Path("/boxes/x/root"), Path("/run/netns/x"), "/boxd-1/x", Path("/run/boxd-1/masks")
)
FACTS = bundle.HostFacts(nofile=1_000_000, caps_swap=True)
