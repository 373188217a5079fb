"""A tmux session in a box that sleeps and wakes: the same processes, the same screen."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.harness.mounts.drive import until
from tests.harness.service.user import User

if TYPE_CHECKING:
    from tests.harness.service.daemon import Daemon

pytestmark = pytest.mark.timeout(300)

TMUX = "LD_LIBRARY_PATH=/opt/tmux TERM=xterm LC_ALL=C.UTF-8 /opt/tmux/tmux"
DETACH = b"\x02d"


def packed() -> bytes:
    """The host's tmux with the libraries that a box of the same release may lack, as a tar."""
    program = Path("/usr/bin/tmux")
    assert program.exists(), "tmux is missing: scripts/setup dev installs it"
    listed = subprocess.run(["ldd", program], check=True, capture_output=True, text=True).stdout
    places = [words[2] for line in listed.splitlines() if len(words := line.split()) > 3]
    libraries = [Path(place) for place in places if "event" in place or "utempter" in place]
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w", dereference=True) as archive:
        for file in (program, *libraries):
            archive.add(file, f"opt/tmux/{file.name}")
    return data.getvalue()


class Terminal:
    """Somebody at a terminal in the box, in its tmux session."""

    def __init__(self, user: User) -> None:
        *words, who, _ = user.command("dev", "")
        self._process = subprocess.Popen(
            [*words, "-tt", who, f"{TMUX} attach"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)
        self._shown = b""

    def shows(self, text: str) -> bool:
        """Whether a text has come to the screen."""
        assert self._process.stdout is not None
        with suppress(BlockingIOError):
            while data := os.read(self._process.stdout.fileno(), 65536):
                self._shown += data
        return text.encode() in self._shown

    def leave(self) -> str:
        """Detaches; returns what was on the screen meanwhile."""
        rest, _ = self._process.communicate(DETACH, timeout=60)
        return (self._shown + rest).decode(errors="replace")

    def type(self, keys: str) -> None:
        """Types a line."""
        assert self._process.stdin is not None
        self._process.stdin.write(keys.encode() + b"\r")
        self._process.stdin.flush()


def test_tmux_lives_on(daemon: Daemon, tmp_path: Path) -> None:
    user = User(daemon, tmp_path)
    subprocess.run(
        user.command("dev", "tar -x -C / -f -"), input=packed(), check=True, capture_output=True
    )
    user.ssh("dev", f"{TMUX} new-session -d -s work -x 80 -y 24 bash")

    def screen() -> str:
        return user.ssh("dev", f"{TMUX} capture-pane -p -t work").rstrip()

    def pids() -> str:
        server = f"{TMUX} display-message -p -t work '#{{pid}} #{{pane_pid}}'"
        return user.ssh("dev", server)

    first = Terminal(user)
    first.type("word=kept; echo typed-$((40 + 2))")
    until(lambda: "typed-42" in screen())
    assert "[detached" in first.leave()
    seen, before = screen(), pids()
    for _ in range(2):
        until(lambda: user.boxes()["dev"]["attached"] == 0)
        assert "suspended" in user.ssh("cli", "suspend dev")
        assert user.boxes()["dev"]["memory"]
        second = Terminal(user)
        until(partial(second.shows, "typed-42"))
        assert user.boxes()["dev"]["detail"] == ""
        assert "[detached" in second.leave()
        assert pids() == before
        assert screen() == seen
    third = Terminal(user)
    third.type("echo $word-$$")
    until(lambda: f"kept-{before.split()[1]}" in screen())
    third.leave()
