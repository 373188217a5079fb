"""sshfs in its own mount namespace, which ends with the script that works in the mount."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

SCRIPT = """
set -eu
mount=$1; shift
"$@" &
until mountpoint -q "$mount"; do kill -0 $!; sleep 0.05; done
cd "$mount"
{work}
cd /
umount "$mount"
wait
"""


def working_in(source: str, ssh: list[str], place: Path, work: str) -> list[str]:
    """Return a command line that mounts `user@host:path` and runs a script there.

    It creates the directory `place`, mounts the source there, runs the script `work` in it, and
    unmounts. `ssh` is the command that reaches the host.
    """
    place.mkdir()
    options = f"ssh_command={shlex.join(ssh)},reconnect"
    script = SCRIPT.format(work=work)
    return [
        *("unshare", "--mount", "--propagation", "private", "bash", "-c", script, "mounted"),
        *(str(place), "sshfs", "-f", "-o", options, source, str(place)),
    ]
