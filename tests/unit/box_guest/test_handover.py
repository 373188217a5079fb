"""The program that becomes a command: what the command has then, and what it refuses."""

from __future__ import annotations

import signal
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from box_guest.shared import frames
from box_guest.shared.sealing import HANDOVER, seal
from tests.harness.agents.ignored import ignored_signals, ignoring

if TYPE_CHECKING:
    from collections.abc import Iterator

BOX_ID = "b0" * 16
SESSION = [b"PATH=/usr/bin:/bin", b"OWN=under", b"ODD=\xff\n", b"LD_PRELOAD=/nothing"]


def first(*, program: bytes = b"/bin/sh", words: list[bytes] | None = None) -> bytes:
    """What the agent says."""
    told = [BOX_ID.encode(), program, *SESSION] if words is None else words
    return frames.framed(frames.joined(told))


@contextmanager
def begun(said: bytes) -> Iterator[tuple[subprocess.Popen[bytes], bytes]]:
    """The program after its greeting, and its public key."""
    program = [sys.executable, "-m", "box_guest.handover"]
    pipe = subprocess.PIPE
    with subprocess.Popen(program, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(said)
        process.stdin.flush()
        line = process.stdout.readline()
        yield process, frames.key_in(line) if line else b""
        process.kill()


def sealed(
    key: bytes, command: bytes, *own: bytes, purpose: str = HANDOVER, box_id: str = BOX_ID
) -> bytes:
    """What the daemon says."""
    text = seal(frames.joined([command, *own]), key, purpose=purpose, box_id=box_id)
    return frames.framed(text)


def test_it_becomes_the_command_with_all_of_its_input() -> None:
    with begun(first(words=[BOX_ID.encode(), b"/bin/sh", *SESSION[:3]])) as (process, key):
        command = b'echo $$; cat; printf %s "$0 $OWN $MINE $ODD"; exit 3'
        text = sealed(key, command, b"OWN=over", b"MINE=a=b") + b"\0input\nof it"
        out, errors = process.communicate(text)
    assert out == b"%d\n\0input\nof itsh over a=b \xff\n" % process.pid
    assert (process.returncode, errors) == (3, b"")


def test_the_environment_is_what_was_given_and_nothing_else() -> None:
    words = [BOX_ID.encode(), b"/bin/sh", b"LANG=C", b"A=1"]
    with begun(first(words=words)) as (process, key):
        out, _ = process.communicate(sealed(key, b"exec /usr/bin/env", b"T=t"))
    assert sorted(line for line in out.split(b"\n") if not line.startswith(b"PWD=")) == [
        *(b"", b"A=1", b"LANG=C", b"T=t")
    ]


def test_a_loaders_variables_are_for_the_command_alone() -> None:
    with begun(first()) as (process, key):
        out, errors = process.communicate(sealed(key, b'echo "$LD_PRELOAD"'))
    assert out == b"/nothing\n"
    assert errors.count(b"/nothing") == 1, "the loader of the shell is the only one that complains"


@pytest.mark.parametrize("ignored", [(), (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP)])
def test_the_command_ignores_no_signal(ignored: tuple[signal.Signals, ...]) -> None:
    """The interpreter ignores some, and a service in the background inherits others."""
    show = b"exec grep ^SigIgn /proc/self/status"
    with (
        ignoring(*ignored),
        begun(first(words=[BOX_ID.encode(), b"/bin/sh", SESSION[0]])) as (process, key),
    ):
        out, _ = process.communicate(sealed(key, show))
    assert ignored_signals(out) == set()


@pytest.mark.parametrize(
    ("said", "text"),
    [
        (b"", "ended in the middle"),
        (frames.framed(b"one\0"), "the list has 1 words; at least 2 are needed"),
        (frames.framed(b"cut"), "cut off"),
        (b"\xff\xff\xff\xff", "at most"),
    ],
)
def test_an_agent_that_says_something_else_begins_nothing(said: bytes, text: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "box_guest.handover"], check=False, input=said, capture_output=True
    )
    assert (done.returncode, done.stdout) == (125, b"")
    assert text in done.stderr.decode()


@pytest.mark.parametrize("how", ["purpose", "box", "key", "altered", "short", "cut", "words"])
def test_what_was_not_sealed_for_it_begins_nothing(how: str) -> None:
    command = b"echo begun"
    with begun(first()) as (process, key):
        good = sealed(key, command)
        with begun(first()) as (_, other):
            replayed = sealed(other, command)
        said = {
            "purpose": sealed(key, command, purpose="another"),
            "box": sealed(key, command, box_id="b1" * 16),
            "key": replayed,
            "altered": good[:-1] + bytes([good[-1] ^ 1]),
            "short": frames.framed(b"x"),
            "cut": good[:-1],
            "words": sealed(key, command, b"no variable"),
        }[how]
        out, errors = process.communicate(said)
    assert (process.returncode, out) == (125, b"")
    assert errors.startswith(b"box-guest: the command was not started: ")
    assert errors.count(b"\n") == 1


def test_a_shell_that_is_not_there_is_named() -> None:
    with begun(first(program=b"/no/shell")) as (process, key):
        out, errors = process.communicate(sealed(key, b"true", b"T=secret"))
    assert (process.returncode, out) == (127, b"")
    assert errors == b"/no/shell: No such file or directory\n"
