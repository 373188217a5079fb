"""Making what this process draws from random sources its own again, after it was copied.

A copied process has the state of every generator in its memory, and so would draw what its twin
draws: the same keys for its connections above all.
"""

from __future__ import annotations

import os
import random

SEED_BYTES = 48
"""What OpenSSL's generator takes of its own accord."""


def reseed() -> bool:
    """Seeds OpenSSL's and Python's generators with fresh bytes of the kernel.

    False when this build of `cryptography` has no way to do it; OpenSSL's then stay as they are.
    """
    random.seed()
    from cryptography.hazmat.bindings.openssl.binding import Binding

    add = getattr(Binding.lib, "RAND_add", None)
    if add is None:
        return False
    # Reseeds the generator that all others descend from, from the kernel and with these bytes;
    # the others notice that and do the same before they are used again.
    add(os.urandom(SEED_BYTES), SEED_BYTES, SEED_BYTES)
    return True
