"""Enables forwarding on the host's uplinks for boxes, and disables it when no box needs it.

The host's global switch (`net.ipv4.ip_forward`) stays unchanged. All installations share the
uplinks, so the record of changed uplinks is outside any installation.
"""

from __future__ import annotations

from pathlib import Path

from boxd.backends.host.files import SYSCTL, read
from boxd.errors import Unavailable

FORWARDING_DIR = Path("/run/boxd-forwarding")
"""One file per uplink whose forwarding was enabled for boxes; all installations share them."""


def host_forwards() -> bool:
    """Return whether the host itself forwards."""
    return read(SYSCTL / "ipv4/ip_forward").strip() == "1"


def switch_on(device: str) -> bool:
    """Enable forwarding on an uplink. Return True if only boxes need it. Raises Unavailable."""
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
                f"boxes need {switch} set to 1 to reach the network, but it cannot be set: "
                f"{error.strerror}; run the service where /proc/sys is writable"
            ) from error
    return mark.exists()


def switch_off() -> None:
    """Disable forwarding on all uplinks that `switch_on` has enabled. No error without any."""
    if not FORWARDING_DIR.is_dir():
        return
    for mark in FORWARDING_DIR.iterdir():
        switch = SYSCTL / "ipv4/conf" / mark.name / "forwarding"
        if switch.exists():
            switch.write_text("0")
        mark.unlink()
    FORWARDING_DIR.rmdir()
