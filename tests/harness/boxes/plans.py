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
    root=Path("/boxes/x/root"),
    netns=Path("/run/netns/x"),
    cgroup="/boxd-1/x",
    masks=Path("/run/boxd-1/masks"),
    run_dir=Path("/boxes/x/run"),
    runtime=Path("/runtime/1"),
)
FACTS = bundle.HostFacts(nofile=1_000_000, caps_swap=True)
