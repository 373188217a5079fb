"""Rights that the daemon gives up for ever, although it runs as root."""

from __future__ import annotations

import ctypes
import os

DROPPED = {
    "linux_immutable": 9,
    "sys_module": 16,
    "sys_rawio": 17,
    "sys_pacct": 20,
    "sys_boot": 22,
    "sys_tty_config": 26,
    "lease": 28,
    "mac_override": 32,
    "mac_admin": 33,
    "syslog": 34,
    "wake_alarm": 35,
    "block_suspend": 36,
    "audit_read": 37,
}
"""Numbers of <linux/capability.h> by name. Neither the service nor runc or CRIU needs them."""
_CAPBSET_DROP = 24
_VERSION_3 = 0x20080522
_libc = ctypes.CDLL(None, use_errno=True)


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


def drop() -> None:
    """Give up the capabilities of `DROPPED` in this process and all that it starts.

    Does nothing without root. Call it before the first thread starts. Raises OSError.
    """
    if os.geteuid() != 0:
        return
    for number in DROPPED.values():
        _check(_libc.prctl(_CAPBSET_DROP, number, 0, 0, 0))
    header = _Header(_VERSION_3, 0)
    words = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable: low bits, then high bits
    _check(_libc.capget(ctypes.byref(header), ctypes.byref(words)))
    for number in DROPPED.values():
        for kind in range(3):
            words[number // 32 * 3 + kind] &= ~(1 << number % 32)
    _check(_libc.capset(ctypes.byref(header), ctypes.byref(words)))


def _check(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
