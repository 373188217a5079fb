"""How CRIU is told to dump and restore a box, through runc, and what it says when it fails. Pure.

runc passes few options on. The others stand in a configuration file that the annotation
ANNOTATION of the box's bundle names: it has to be there from the box's first start, and the file
may be written anew before each dump and each restore.

The order of things that these texts are made for (each step *measured* with runc 1.1.5 and CRIU
4.3 on a hybrid cgroup host):

1. `runc pause`, then `runc` + `dump(...)`: the processes stay, paused, and no instruction of theirs
   runs; a dump that failed has changed nothing either. CRIU itself lets them go on for the moment
   in which it works, so a dump that is killed may leave them running;
2. SIGKILL to every process of the cgroup, then thaw: none of them runs another instruction;
3. `runc delete --force`, later `runc` + `restore(...)` on the same bundle. A restore that failed
   may be repeated with the same images after another `delete`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from boxd.backends.bundle import DRIVE_DIR, HIDDEN_UNDER, MASKED_PATHS
from boxd.errors import Unavailable
from boxd.log import escape

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

ANNOTATION = "org.criu.config"
"""Names the configuration file in the bundle of a box."""
DUMP_LOG = "dump.log"
RESTORE_LOG = "restore.log"
"""What CRIU writes below the work directory."""
GHOST_LIMIT = "64M"
"""The largest file without a name whose content is kept with the memory."""
MASKED = tuple(path for path in MASKED_PATHS if not path.startswith(HIDDEN_UNDER))
"""What runc itself hides; files, and directories by a tmpfs each."""
_DRIVE = DRIVE_DIR.strip("/")
"""By this word the drive is known between a dump and its restore."""
_ALWAYS = (
    # The link of a box is taken down by us; CRIU would look for iptables.
    "network-lock skip",
    "tcp-established",
    "file-locks",
    "manage-cgroups ignore",
    # Files without a name that have, or have not, another one somewhere.
    "link-remap",
    f"ghost-limit {GHOST_LIMIT}",
    # The mode of a file on the drive may be changed while the box sleeps.
    "skip-file-rwx-check",
)
_ERROR = re.compile(r"^\(\d+\.\d+\)\s+(?:\d+:\s+)?Error(?:\s+\([^)]*\))?:?\s+(?P<text>\S.*)$")
_IN_EVERY_LOG = re.compile(r"RLIMIT_NOFILE|interrupted system call")
_SAYS_NOTHING = re.compile(
    r"(Dumping|Restoring) FAILED|failed with -?\d+$|exited, status=|killed by signal|cgroupd: "
)
_LONGEST = 200
_PLAINLY = {
    "ctty inheritance": "a program has /dev/tty open, as less and sh do in a terminal; end it",
}
"""What words of CRIU mean to people who do not know it."""


def for_dump(*, drive: bool, masked: Iterable[str] = ()) -> str:
    """The configuration file for a dump; `drive`: the box has /wrk mounted.

    `masked` are directories of /proc that a tmpfs hides; they stay out of the images, too: for
    each tmpfs CRIU would start `tar`.

    Without the line for it the dump of a mount that came into a running box fails, and with it
    the mount stays out of the images.
    """
    lines = [*_ALWAYS]
    if drive:
        lines.append(f"external mnt[{DRIVE_DIR}]:{_DRIVE}")
    lines += [f"external mnt[{path}]:{_masked(path)}" for path in masked]
    return _text(lines)


def for_restore(drive: Path | None, empty: Path | None = None) -> str:
    """The configuration file for a restore; the mount at `drive` of this host appears at /wrk.

    It has to be given if, and only if, /wrk was mounted at the dump; the bundle does not name it.
    The directory `empty` appears at each place that was `masked`, read-only as the mount there was.
    Raises Unavailable for a place that cannot be written in the file.
    """
    lines = [*_ALWAYS]
    if drive is not None:
        lines.append("external " + _word(f"mnt[{_DRIVE}]:{drive}"))
    if empty is not None:
        lines += ["external " + _word(f"mnt[{_masked(path)}]:{empty}") for path in MASKED]
    return _text(lines)


def _masked(path: str) -> str:
    """By this word the mount that hides a directory is known between a dump and its restore."""
    return "masked" + path.replace("/", "-")


def dump(box_id: str, images: Path, work: Path) -> tuple[str, ...]:
    """Arguments of runc that write a box's memory to `images`, and the log to `work`.

    The box must be paused, and is so afterwards.
    """
    return ("checkpoint", *_places(images, work), "--leave-running", box_id)


def restore(
    box_id: str, images: Path, work: Path, *, bundle: Path, pid_file: Path
) -> tuple[str, ...]:
    """Arguments of runc that bring a box back from `images`; it runs at once.

    The streams of the runc process become the box's: they must be /dev/null.
    """
    places = ("--bundle", str(bundle), "--pid-file", str(pid_file), *_places(images, work))
    return ("restore", "--detach", *places, box_id)


def complaint(log: str) -> str:
    """Why a dump or a restore failed, in one line, from the text of CRIU's log.

    The last error that says something; what every log has, also of what went well, is left out.
    """
    matches = filter(None, map(_ERROR.match, log.splitlines()))
    found = [" ".join(match["text"].split()) for match in matches]
    found = [text for text in found if not _IN_EVERY_LOG.search(text)]
    telling = [text for text in found if not _SAYS_NOTHING.search(text)]
    words = (telling or found or ["CRIU said nothing"])[-1]
    for pattern, plain in _PLAINLY.items():
        if pattern in words:
            return f"{plain} ({escape(words)[:_LONGEST]})"
    return escape(words)[:_LONGEST]


def _places(images: Path, work: Path) -> tuple[str, ...]:
    return ("--image-path", str(images), "--work-path", str(work))


def _text(lines: list[str]) -> str:
    return "\n".join(lines) + "\n"


def _word(word: str) -> str:
    """A word as CRIU reads it: quoted when there is a blank in it."""
    if re.search(r'["\\\n]', word):
        raise Unavailable(f"CRIU cannot be told of {escape(word)}: use a plainer --state-dir")
    return f'"{word}"' if re.search(r"\s", word) else word
