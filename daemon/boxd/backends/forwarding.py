"""Forwarding by the host's uplinks, switched on for boxes and back off when no box needs it.

The host's own switch (`net.ipv4.ip_forward`) stays as it is. What is on because of boxes is noted
outside of any installation, as all of them share the uplinks.
"""

from __future__ import annotations

from pathlib import Path

from boxd.backends.hostfiles import SYSCTL, read
from boxd.errors import Unavailable

FORWARDING_DIR = Path("/run/boxd-forwarding")
"""One file per uplink whose forwarding is on because of boxes; shared by all installations."""


def host_forwards() -> bool:
    """Whether the host itself forwards."""
    return read(SYSCTL / "ipv4/ip_forward").strip() == "1"


def switch_on(device: str) -> bool:
    """Lets an uplink forward; True when it does so only because of boxes. Unavailable."""
    switch = SYSCTL / "ipv4/conf" / device / "forwarding"
    mark = FORWARDING_DIR / device
    if read(switch).strip() == "0":
        FORWARDING_DIR.mkdir(mode=0o700, exist_ok=True)
        mark.touch()
        try:
            switch.write_text("1")
        except OSError as error:
            mark.unlink()
            raise Unavailable(
                f"{switch} cannot be set to 1, which boxes need to reach the network: "
                f"{error.strerror}; run the service where /proc/sys is writable"
            ) from error
    return mark.exists()


def switch_off() -> None:
    """Has all uplinks forward as they did before boxes. No error if nothing was switched."""
    if not FORWARDING_DIR.is_dir():
        return
    for mark in FORWARDING_DIR.iterdir():
        switch = SYSCTL / "ipv4/conf" / mark.name / "forwarding"
        if switch.exists():
            switch.write_text("0")
        mark.unlink()
    FORWARDING_DIR.rmdir()
