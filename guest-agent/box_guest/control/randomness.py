"""Reseeding the random generators of a process that was copied.

A copied process has the state of every generator in its memory. Without reseeding it would draw the
same values as its twin, above all the same keys for its connections.
"""

from __future__ import annotations

import os
import random

SEED_BYTES = 48
"""Seed size in bytes; OpenSSL's own generator uses the same."""


def reseed() -> bool:
    """Seed OpenSSL's and Python's generators with fresh bytes from the kernel.

    Returns False if this build of `cryptography` does not allow it; OpenSSL's generators are then
    unchanged.
    """
    random.seed()
    from cryptography.hazmat.bindings.openssl.binding import Binding

    add = getattr(Binding.lib, "RAND_add", None)
    if add is None:
        return False
    # RAND_add reseeds the root generator from the kernel and with these bytes. The other generators
    # notice that and reseed before their next use.
    add(os.urandom(SEED_BYTES), SEED_BYTES, SEED_BYTES)
    return True
