"""A sandbox for one process: its user, its paths and its system calls."""

from __future__ import annotations

import base64
import json
import os
import sys
import sysconfig
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from boxd.sandbox import calls

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
"""Programs and libraries of the host."""
FACTS = (
    "/etc/ca-certificates",
    "/etc/gai.conf",
    "/etc/group",
    "/etc/hosts",
    "/etc/ld.so.cache",
    "/etc/localtime",
    "/etc/nsswitch.conf",
    "/etc/passwd",
    "/etc/resolv.conf",
    "/etc/ssl",
    "/etc/timezone",
)
"""Names, addresses, certificates and time zones, which libraries read. Nothing here is secret."""
DEVICES = ("/dev/full", "/dev/null", "/dev/random", "/dev/urandom", "/dev/zero")
PACKAGES = ("box_guest", "boxd", "objectserver", "wrkfs")


@dataclass(frozen=True, slots=True)
class Sandbox:
    """What one process may use.

    `user` is its user and group id. `calls` is a list of `calls.LISTS`.
    """

    user: int
    calls: str
    readable: tuple[Path, ...] = ()
    """Paths besides those of every sandbox; missing paths and links to them are left out."""
    writable: tuple[Path, ...] = ()
    """Directories of this process."""
    group: int | None = None
    """Group id, if it differs from the user id."""
    network: bool = True
    """Whether it has the host's network. Without it, only sockets with paths remain."""

    def document(self) -> dict[str, Any]:
        """Return the description of the sandbox for `boxd.sandbox.enter`. Raises Unavailable."""
        readable = (*SYSTEM, *FACTS, *DEVICES, *_code(), *map(str, self.readable))
        return {
            "user": self.user,
            "group": self.user if self.group is None else self.group,
            "readable": sorted({path for path in readable if os.path.exists(path)}),
            "writable": [str(path) for path in self.writable],
            "network": self.network,
            "filter": base64.b64encode(calls.program(self.calls)).decode(),
        }

    @contextmanager
    def command(self, program: Sequence[str]) -> Iterator[tuple[list[str], int]]:
        """Yield a command that enters the sandbox and executes `program`, and a descriptor.

        The command must inherit the descriptor, and must run as root. Raises OSError, and
        Unavailable without libseccomp.
        """
        descriptor = os.memfd_create("sandbox", os.MFD_CLOEXEC)
        try:
            os.write(descriptor, json.dumps(self.document()).encode())
            os.lseek(descriptor, 0, os.SEEK_SET)
            yield (
                [sys.executable, "-I", "-m", "boxd.sandbox.enter", str(descriptor), *program],
                descriptor,
            )
        finally:
            os.close(descriptor)


def _code() -> Iterator[str]:
    """Yield the directories of Python, of its packages and of the service."""
    yield sys.prefix
    yield sys.base_prefix
    yield sysconfig.get_path("stdlib")
    yield from {str(Path(sys.executable).parent), str(Path(sys.executable).resolve().parent)}
    for name in PACKAGES:
        spec = find_spec(name)
        yield from () if spec is None else spec.submodule_search_locations or ()
