"""What CRIU is told, and what is made of its words."""

from __future__ import annotations

from pathlib import Path

import pytest

from boxd.backends.checkpoint import criu_config
from boxd.errors import Unavailable

IMAGES, WORK, MASKS = Path("/s/new"), Path("/s/work"), Path("/r/masks")


def options(text: str) -> dict[str, str]:
    """Option and value of each line."""
    assert text.endswith("\n")
    return dict(line.partition(" ")[::2] for line in text.splitlines())


def for_restore(drive: Path | None) -> str:
    """The configuration file for a restore."""
    return criu_config.for_restore(drive, MASKS, cgroup="/i/b1", images=IMAGES, work=WORK)


def test_every_dump_and_restore() -> None:
    plain = options(criu_config.for_dump(drive=False))
    restored = options(for_restore(None))
    del restored["external"]
    assert (restored.pop("images-dir"), restored.pop("work-dir")) == (str(IMAGES), str(WORK))
    assert restored.pop("cgroup-root") == "/i/b1"
    assert plain == restored
    assert plain["network-lock"] == "skip"
    assert plain["ghost-limit"] == "64M"
    assert plain.keys() >= {"tcp-established", "file-locks", "link-remap", "skip-file-rwx-check"}
    assert "external" not in plain


def test_the_drive_goes_by_a_name() -> None:
    assert options(criu_config.for_dump(drive=True))["external"] == "mnt[/wrk]:wrk"
    restored = for_restore(Path("/s/mounts/v")).splitlines()
    assert "external mnt[wrk]:/s/mounts/v" in restored


def test_what_hides_directories_of_proc_stays_out() -> None:
    dump = criu_config.for_dump(drive=True, masked=["/proc/acpi"]).splitlines()
    assert dump[-2:] == ["external mnt[/wrk]:wrk", "external mnt[/proc/acpi]:masked-proc-acpi"]
    restore = for_restore(None).splitlines()
    assert "external mnt[masked-proc-acpi]:/r/masks/directories/proc-acpi" in restore
    assert "external mnt[/dev/null]:/r/masks/files/null" in restore
    sources = [line.rpartition(":")[2] for line in restore if line.startswith("external")]
    assert len(set(sources)) == len(sources)
    assert not [line for line in restore if "-sys-" in line]


def test_places_with_blanks_are_quoted() -> None:
    text = for_restore(Path("/my state/v"))
    assert 'external "mnt[wrk]:/my state/v"' in text.splitlines()


@pytest.mark.parametrize("place", ['/a"b', "/a\nleave-stopped", "/a\\"])
def test_places_that_cannot_be_written_are_refused(place: str) -> None:
    with pytest.raises(Unavailable, match="--state-dir"):
        for_restore(Path(place))


@pytest.mark.parametrize(("own_users", "more"), [(False, ()), (True, ("--empty-ns", "network"))])
def test_arguments(own_users: bool, more: tuple[str, ...]) -> None:
    assert criu_config.dump("b1", IMAGES, WORK, own_users=own_users) == (
        *("checkpoint", "--image-path", "/s/new", "--work-path", "/s/work"),
        *more,
        *("--leave-running", "b1"),
    )
    assert criu_config.restore(
        "b1",
        IMAGES,
        WORK,
        bundle=Path("/b/bundle"),
        pid_file=Path("/b/pid"),
        own_users=own_users,
    ) == (
        *("restore", "--detach", "--bundle", "/b/bundle", "--pid-file", "/b/pid"),
        *("--image-path", "/s/new", "--work-path", "/s/work"),
        *more,
        "b1",
    )


DUMP = """\
(00.000012) Version: 4.3 (gitid 0)
(00.001213) Error (criu/rlimit.c:69): rlimit: Can't setup RLIMIT_NOFILE for self: Not permitted
(00.040000) Warn  (criu/kerndat.c:1302): Can't keep kdat cache on non-tempfs
(00.057966) 42 fdinfo 8: pos: 0 flags: 2004000/0x1
(00.057971) Error (criu/fsnotify.c:284): fsnotify:      Can't dump that handle
(00.057980) ----------------------------------------
(00.057990) Error (criu/cr-dump.c:1698): Dump files (pid: 1327079) failed with -1
(00.060000) Error (criu/cr-dump.c:2111): Dumping FAILED.
"""
RESTORE = """\
(00.010000)      1: Error (criu/files-reg.c:2200): File wrk/x has bad size 1004 (expect 1000)
(00.015000) Error (criu/cgroup.c:1998): cg: cgroupd: recv req error: No such file or directory
(00.020000) Error (criu/cr-restore.c:1500): 12 exited, status=1
(00.030000) Error (criu/cr-restore.c:2400): Restoring FAILED.
"""


@pytest.mark.parametrize(
    ("log", "words"),
    [
        (DUMP, "fsnotify: Can't dump that handle"),
        (RESTORE, "File wrk/x has bad size 1004 (expect 1000)"),
        ("(00.060000) Error (criu/cr-dump.c:2111): Dumping FAILED.\n", "Dumping FAILED."),
        ("(00.000012) all is well\n", "CRIU reported no error"),
        ("", "CRIU reported no error"),
        ("(00.1) Error (c.c:1): no file \x1b[31mred\n", "no file \\x1b[31mred"),
        ("(00.1) Error (c.c:1): " + "x" * 999, "x" * 200),
        (
            "(00.1) Error (tty.c:1): tty: ctty inheritance detected sid/pgrp 3\n",
            "a program has /dev/tty open, as less and sh do in a terminal; end it"
            " (tty: ctty inheritance detected sid/pgrp 3)",
        ),
    ],
)
def test_the_error_that_says_something(log: str, words: str) -> None:
    assert criu_config.complaint(log) == words


def test_harmless_errors_are_no_complaint() -> None:
    assert criu_config.complaint("\n".join(DUMP.splitlines()[:4])) == "CRIU reported no error"
