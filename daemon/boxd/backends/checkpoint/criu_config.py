"""Configuration and arguments for CRIU dumps and restores through runc, and its error texts. Pure.

runc passes on only a few options. The others are in a configuration file, which the annotation
ANNOTATION of the box's bundle names. The annotation must exist from the box's first start. The
service may rewrite the file before each dump and each restore.

The sequence of steps (each *measured* with runc 1.1.5 and CRIU 4.3 on a hybrid cgroup host):

1. `runc pause`, then `runc` + `dump(...)`. The processes stay paused and execute no instruction. A
   failed dump changes nothing either. CRIU itself unpauses them while it works, so a dump that is
   killed may leave them running.
2. SIGKILL to every process of the cgroup, then thaw. No process executes another instruction.
3. `runc delete --force`, later `runc` + `restore(...)` on the same bundle. A failed restore may be
   repeated with the same images after another `delete`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from boxd.backends.oci import masks
from boxd.backends.oci.bundle import DRIVE_DIR, HIDDEN_UNDER, MASKED_PATHS
from boxd.errors import Unavailable
from boxd.log import escape

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

OLDEST = (4, 3)
"""The oldest usable version. 4.1 crashes in the dump on current kernels. After a resume by 4.2,
file watches report no events."""
ANNOTATION = "org.criu.config"
"""The annotation that names the configuration file in the bundle of a box."""
DUMP_LOG = "dump.log"
RESTORE_LOG = "restore.log"
"""Log files that CRIU writes in the work directory."""
GHOST_LIMIT = "64M"
"""The largest file without a name whose content CRIU saves with the memory."""
MASKED = tuple(path for path in MASKED_PATHS if not path.startswith(HIDDEN_UNDER))
"""The paths that runc masks: files, and directories with a tmpfs each."""
_NULL = "/dev/null"
"""The key by which runc identifies all masked files, in a dump and its restore."""
_DRIVE = DRIVE_DIR.strip("/")
"""The key by which the configuration identifies the drive, in a dump and its restore."""
_ALWAYS = (
    # The service takes down the box's link. Without this option, CRIU would look for iptables.
    "network-lock skip",
    "tcp-established",
    "file-locks",
    "manage-cgroups ignore",
    # For open files without a name, whether or not they have another name elsewhere.
    "link-remap",
    f"ghost-limit {GHOST_LIMIT}",
    # Clients may change the mode of a file on the drive while the box is suspended.
    "skip-file-rwx-check",
)
_ERROR = re.compile(r"^\(\d+\.\d+\)\s+(?:\d+:\s+)?Error(?:\s+\([^)]*\))?:?\s+(?P<text>\S.*)$")
_IN_EVERY_LOG = re.compile(r"RLIMIT_NOFILE|interrupted system call")
_UNSPECIFIC = re.compile(
    r"(Dumping|Restoring) FAILED|failed with -?\d+$|exited, status=|killed by signal|cgroupd: "
)
_LONGEST = 200
_EXPLANATIONS = {
    "ctty inheritance": "a program has /dev/tty open, as less and sh do in a terminal; end it",
    "packetized mode for pipes": "a pipe is in packet mode (O_DIRECT); end its program",
    "Unsupported proto": "a program has a socket of a protocol that cannot be stored; end it",
    "In-flight connections": "a TCP connection waits for a program to accept it; wait, or end it",
    "on an in-flight socket": "a connection of a unix socket waits for a program to accept it; "
    "wait, or end it",
    "The socket has data to read": "a program has not read a netlink message about the network; "
    "wait, or end it",
    "corked dgram socket": "a UDP socket has data that its program holds back (UDP_CORK); end it",
    "Zombies with threads": "the main thread of a program has ended, but other threads run; end it",
    "Can't make FS id": "two processes share one working directory (CLONE_FS); end one",
    "mapfile link": "a program has memory that cannot be stored (memfd_secret); end it",
    "Can't lookup mount": "a program has an open file on a mount that cannot be stored; end it",
    "Can't dump file": "a program has an open file of a kind that cannot be stored; end it",
    "Can't dump ghost file": f"a deleted open file is larger than {GHOST_LIMIT}; close it",
}
"""Explanations of CRIU's error texts for users, with the remedy."""


def for_dump(*, drive: bool, masked: Iterable[str] = ()) -> str:
    """Return the configuration file for a dump. `drive`: the box has /wrk mounted.

    `masked` are directories of /proc that a tmpfs masks. The configuration keeps them out of the
    images, because CRIU would start `tar` for each tmpfs.

    The line for the drive keeps its mount out of the images. Without it, the dump fails for a mount
    that was added to a running box.
    """
    lines = [*_ALWAYS]
    if drive:
        lines.append(f"external mnt[{DRIVE_DIR}]:{_DRIVE}")
    lines += [f"external mnt[{path}]:{_mask_key(path)}" for path in masked]
    return _text(lines)


def for_restore(
    drive: Path | None, hidden_by: Path, *, cgroup: str, images: Path, work: Path
) -> str:
    """Return the configuration file for a restore.

    `drive` is a mount on this host that appears at /wrk. It must be given if, and only if, /wrk was
    mounted at the dump. The bundle does not name it.

    The file also names `images` and `work`. CRIU looks for the descriptors that runc names in the
    process at the other end of its socket. That process is not runc (`criu_relay`).

    `hidden_by` is the top directory of `masks`. One of its directories appears at each masked
    directory, and its null device at each masked file. With runc alone, the host's own /dev/null
    would appear there, and a box could change its mode.

    `cgroup` is the box's cgroup. runc names it to CRIU for hierarchies of v1 only. With v2, CRIU
    would put the processes of a copied box into the cgroup of the original.

    Raises Unavailable for a path that the file format cannot express.
    """
    lines = [*_ALWAYS, "images-dir " + _word(str(images)), "work-dir " + _word(str(work))]
    lines.append("cgroup-root " + _word(cgroup))
    if drive is not None:
        lines.append("external " + _word(f"mnt[{_DRIVE}]:{drive}"))
    lines.append("external " + _word(f"mnt[{_NULL}]:{masks.null(hidden_by)}"))
    for path in MASKED:
        place = masks.directory(hidden_by, path)
        lines.append("external " + _word(f"mnt[{_mask_key(path)}]:{place}"))
    return _text(lines)


def _mask_key(path: str) -> str:
    """Return the key of the mount that masks a directory, in a dump and its restore."""
    return "masked" + path.replace("/", "-")


def dump(box_id: str, images: Path, work: Path, *, own_users: bool) -> tuple[str, ...]:
    """Return runc's arguments to write a box's memory to `images` and the log to `work`.

    The box must be paused, and stays paused. With `own_users`, it has its own user namespace. CRIU
    then creates a new one at the restore, and a network namespace that belongs to it. So the dump
    contains no links, and the service connects the box again.
    """
    return ("checkpoint", *_places(images, work), *_network(own_users), "--leave-running", box_id)


def restore(
    box_id: str, images: Path, work: Path, *, bundle: Path, pid_file: Path, own_users: bool
) -> tuple[str, ...]:
    """Return runc's arguments to restore a box from `images`; the box runs at once.

    The streams of the runc process become the box's, so they must be /dev/null.
    """
    places = ("--bundle", str(bundle), "--pid-file", str(pid_file), *_places(images, work))
    return ("restore", "--detach", *places, *_network(own_users), box_id)


def _network(own_users: bool) -> tuple[str, ...]:
    return ("--empty-ns", "network") if own_users else ()


def complaint(log: str) -> str:
    """Return the reason of a failed dump or restore in one line, from the text of CRIU's log.

    The reason is the last specific error. The function ignores errors that every log contains, even
    after success.
    """
    matches = filter(None, map(_ERROR.match, log.splitlines()))
    errors = [" ".join(match["text"].split()) for match in matches]
    errors = [text for text in errors if not _IN_EVERY_LOG.search(text)]
    specific = [text for text in errors if not _UNSPECIFIC.search(text)]
    words = (specific or errors or ["CRIU reported no error"])[-1]
    for pattern, plain in _EXPLANATIONS.items():
        if pattern in words:
            return f"{plain} ({escape(words)[:_LONGEST]})"
    return escape(words)[:_LONGEST]


def _places(images: Path, work: Path) -> tuple[str, ...]:
    return ("--image-path", str(images), "--work-path", str(work))


def _text(lines: list[str]) -> str:
    return "\n".join(lines) + "\n"


def _word(word: str) -> str:
    """Quote a word for CRIU's configuration file if it contains white space."""
    if re.search(r'["\\\n]', word):
        raise Unavailable(f"CRIU cannot read the path {escape(word)}: use a plainer --state-dir")
    return f'"{word}"' if re.search(r"\s", word) else word
