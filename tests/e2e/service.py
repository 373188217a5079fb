"""A whole service started with `make up`, and the stock clients that a user has."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import os
import signal
import socket
import subprocess
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import psutil

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

ROOT = Path(__file__).parents[2]
START_S = 900
"""A first start builds the default image and the guest runtime."""
STOP_S = 60


def wait_for(condition: Callable[[], bool], seconds: float, what: str) -> None:
    """Polls a condition; fails naming it when the deadline passes."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds} s: {what}")
        time.sleep(0.05)


def _shell_environment() -> dict[str, str]:
    """The environment of a user's shell: what `make test` tells its own sub-makes is not in it."""
    return {
        name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))
    }


def free_port() -> int:
    """A loopback port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def sha256(data: bytes) -> str:
    """Hex digest."""
    return hashlib.sha256(data).hexdigest()


@dataclass
class Answer:
    """An HTTP answer."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def error(self) -> str:
        """The text of an `{error}` body."""
        text = json.loads(self.body)["error"]
        assert isinstance(text, str)
        return text


class Service:
    """`make up` on free ports and a state directory of its own; `flags` are more for `serve`."""

    def __init__(self, state_dir: Path, flags: str = "") -> None:
        self.state_dir = state_dir
        self.flags = flags
        self.ssh_port, self.api_port = free_port(), free_port()
        self.output: list[str] = []
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None

    @property
    def running(self) -> subprocess.Popen[str]:
        """The `make` process."""
        assert self._process is not None
        return self._process

    def start(self) -> None:
        """Starts and waits until both doors answer; fails with the output."""
        self.output.clear()
        self._process = subprocess.Popen(
            [
                "make",
                "up",
                f"STATE_DIR={self.state_dir}",
                f"SSH_ADDR=127.0.0.1:{self.ssh_port}",
                f"API_ADDR=127.0.0.1:{self.api_port}",
                f"FLAGS={self.flags}",
            ],
            cwd=ROOT,
            env=_shell_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        wait_for(self._up, START_S, "make up answers on both doors")

    def _read(self) -> None:
        assert self.running.stdout is not None
        for line in self.running.stdout:
            self.output.append(line)
        self.running.stdout.close()

    def _up(self) -> bool:
        assert self.running.poll() is None, "make up ended:\n" + "".join(self.output)
        with contextlib.suppress(OSError, http.client.HTTPException):
            if self.http("GET", "/healthz").status != 200:
                return False
            with socket.create_connection(("127.0.0.1", self.ssh_port), timeout=2):
                return True
        return False

    def wait_up(self) -> None:
        """Waits until both doors answer again."""
        wait_for(self._up, 60, "both doors answer")

    def interrupt(self) -> int:
        """Ctrl-C: the terminal signals the whole foreground group. Gives the exit status."""
        os.killpg(self.running.pid, signal.SIGINT)
        status = self.running.wait(STOP_S)
        self._join()
        return status

    def kill_daemon(self) -> None:
        """SIGKILL of the daemon alone."""
        os.kill(self.daemon_pid(), signal.SIGKILL)
        self.running.wait(STOP_S)
        self._join()

    def _join(self) -> None:
        assert self._reader is not None
        self._reader.join(10)
        self._process = None

    def close(self) -> None:
        """Ends whatever is left, also after a failed test."""
        if self._process is not None and self._process.poll() is None:
            self.interrupt()
        command = ["make", "down", f"STATE_DIR={self.state_dir}"]
        subprocess.run(
            command,
            cwd=ROOT,
            env=_shell_environment(),
            check=True,
            capture_output=True,
            timeout=120,
        )

    def command(self, name: str, *words: str) -> str:
        """Output of a command of the virtual environment; it must succeed."""
        command = [str(ROOT / ".venv" / "bin" / name), *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def daemon_pid(self) -> int:
        """The daemon below `make`."""
        children = psutil.Process(self.running.pid).children(recursive=True)
        for child in [psutil.Process(self.running.pid), *children]:
            words = child.cmdline()
            if "serve" in words and child.name() not in {"make", "bash", "sh"}:
                return child.pid
        raise AssertionError("no daemon process")

    def processes(self, *words: str) -> list[int]:
        """Processes of this installation whose command line has all words."""
        found = []
        for process in psutil.process_iter(["pid", "cmdline"]):
            line = " ".join(process.info["cmdline"] or [])
            if all(word in line for word in words):
                found.append(process.info["pid"])
        return found

    # -- the user's tools --

    def http(
        self,
        method: str,
        path: str,
        *,
        key: str | None = None,
        body: bytes | None = None,
        headers: dict[str, str] | None = None,
    ) -> Answer:
        """One HTTP request."""
        sent = dict(headers or {})
        if key is not None:
            sent["Authorization"] = f"Bearer {key}"
        connection = http.client.HTTPConnection("127.0.0.1", self.api_port, timeout=120)
        with contextlib.closing(connection):
            connection.request(method, path, body=body, headers=sent)
            answer = connection.getresponse()
            return Answer(answer.status, dict(answer.headers), answer.read())


class Served(Protocol):
    """What a person needs of a service."""

    @property
    def ssh_port(self) -> int:
        """Of its front door, on loopback."""
        ...


class Person:
    """Somebody with an SSH key and OpenSSH's clients."""

    def __init__(self, service: Served, home: Path) -> None:
        self.service = service
        self.key = home / "id_ed25519"
        self._known_hosts = home / "known_hosts"
        home.mkdir(parents=True)
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(self.key)]
        subprocess.run(command, check=True)

    @property
    def options(self) -> list[str]:
        """Options that ssh, scp and sftp share."""
        settings = {
            "UserKnownHostsFile": str(self._known_hosts),
            "StrictHostKeyChecking": "accept-new",
            "IdentitiesOnly": "yes",
            "BatchMode": "yes",
            "LogLevel": "ERROR",
            "IdentityFile": str(self.key),
            "IdentityAgent": "none",
        }
        return ["-F", "none", *(f"-o{name}={value}" for name, value in settings.items())]

    def ssh_command(self, user: str, *words: str) -> list[str]:
        """The whole `ssh` command line."""
        port = str(self.service.ssh_port)
        return ["ssh", *self.options, "-p", port, "-l", user, "127.0.0.1", *words]

    def ssh(
        self, user: str, *words: str, stdin: bytes = b"", timeout: float = 120
    ) -> subprocess.CompletedProcess[bytes]:
        """Runs `ssh user@host words`; does not look at the exit status."""
        return subprocess.run(
            self.ssh_command(user, *words),
            input=stdin,
            capture_output=True,
            timeout=timeout,
            check=False,
        )

    def hop(self) -> list[str]:
        """Options that ssh, scp and sftp share to come by the relay: `-J`, as people type it.

        The hop has no options but those of the configuration file.
        """
        lines = [option.removeprefix("-o").replace("=", " ", 1) for option in self.options[2:]]
        config = self.key.with_name("config")
        config.write_text("\n".join(lines) + "\n")
        return ["-F", str(config), "-J", f"jump@127.0.0.1:{self.service.ssh_port}"]

    def forward(
        self, user: str, target: str, stdin: bytes = b""
    ) -> subprocess.CompletedProcess[bytes]:
        """`ssh -W target`: stdin and stdout are a connection that the box makes."""
        command = self.ssh_command(user)
        command[1:1] = ["-oLogLevel=INFO", "-W", target]
        return subprocess.run(command, input=stdin, capture_output=True, timeout=60, check=False)

    def run(self, user: str, command: str, *, stdin: bytes = b"", timeout: float = 120) -> str:
        """Runs a command in a box; fails with its stderr unless it exits 0."""
        done = self.ssh(user, command, stdin=stdin, timeout=timeout)
        assert done.returncode == 0, (command, done.returncode, done.stdout, done.stderr)
        return done.stdout.decode()

    def tool(self, command: Sequence[str], *, stdin: bytes = b"") -> None:
        """Runs another client program; fails with its output unless it exits 0."""
        done = subprocess.run(
            list(command), input=stdin, capture_output=True, timeout=300, check=False
        )
        assert done.returncode == 0, (command, done.returncode, done.stdout, done.stderr)

    def new_key(self, name: str, *words: str) -> str:
        """`apikeys create`: the key that is shown once."""
        done = self.ssh("cli", "apikeys", "create", name, *words)
        assert done.returncode == 0, done.stderr
        key = done.stdout.decode().strip()
        assert key.startswith("svc_")
        assert len(key) == 44
        return key
