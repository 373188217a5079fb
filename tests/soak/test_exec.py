"""EXEC, EX-ENDS: commands over HTTP before a real service, in a real box. None fails, none is torn.

How long each took is kept in `.build/exec`, by form; it is measured, not asserted, for the machine
may be busy.
"""

from __future__ import annotations

import base64
import http.client
import json
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.harness.http.commands import Ran, header, read_stream
from tests.harness.service.user import User

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.harness.service.daemon import Daemon
    from tests.plugins.figures import Figures

KEPT = Path(".build/exec")
CLIENTS = 4
TYPE = "application/x-svc-exec"
SIGNALS = {"HUP": 1, "INT": 2, "KILL": 9, "USR1": 10, "PIPE": 13, "ALRM": 14, "TERM": 15}
BATCH = 200
"""Rounds that are handed out at a time: the long run notes what it has reached between them."""


@dataclass(frozen=True, slots=True)
class End:
    """A command, what goes in, and what must come out; None: not looked at."""

    cmd: str
    expected: Ran
    input: bytes = b""
    timeout_s: int = 300


class Clients:
    """Keeps a connection for each thread that asks."""

    def __init__(self, port: int, key: str) -> None:
        self._port, self._key = port, key
        self._local = threading.local()
        self._opened: list[http.client.HTTPConnection] = []

    def post(self, path: str, body: bytes) -> tuple[int, bytes]:
        """One exec: status and the whole answer."""
        found: http.client.HTTPConnection | None = getattr(self._local, "connection", None)
        if found is None:
            found = http.client.HTTPConnection("127.0.0.1", self._port, timeout=120)
            self._local.connection = found
            self._opened.append(found)
        headers = {"Authorization": f"Bearer {self._key}", "Content-Type": TYPE}
        found.request("POST", path, body=body, headers=headers)
        answer = found.getresponse()
        return answer.status, answer.read()

    def close(self) -> None:
        """Closes all."""
        for connection in self._opened:
            connection.close()


@pytest.fixture(scope="module")
def clients(daemon: Daemon, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clients]:
    """Of somebody whose box `web` runs."""
    user = User(daemon, tmp_path_factory.mktemp("user"))
    made = Clients(daemon.api_port, user.ssh("cli", "apikeys create exec"))
    assert made.post("/v1/exec/web?stream=false", header("true"))[0] == 200
    yield made
    made.close()


def streamed(clients: Clients, body: bytes) -> Ran:
    """By the stream, which is parsed strictly: `exit` once and last."""
    status, text = clients.post("/v1/exec/web", body)
    assert status == 200, text
    return read_stream(text)


def buffered(clients: Clients, body: bytes) -> Ran:
    """By the buffered form."""
    status, text = clients.post("/v1/exec/web?stream=false", body)
    assert status == 200, text
    told = json.loads(text)
    out, err = (base64.b64decode(told[name], validate=True) for name in ("stdout", "stderr"))
    return Ran(out, err, told["exit_code"])


FORMS: dict[str, Callable[[Clients, bytes], Ran]] = {"stream": streamed, "buffered": buffered}


@pytest.mark.figure("EXEC")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("form", FORMS)
def test_no_command_fails(clients: Clients, figures: Figures, form: str) -> None:
    taken: list[float] = []

    def one(seed: int) -> None:
        begun = time.monotonic()
        ran = FORMS[form](clients, header(f"echo ok {seed}"))
        taken.append(time.monotonic() - begun)
        assert ran == Ran(b"ok %d\n" % seed, b"", 0)

    try:
        run_all(one, figures(ci=1000, long=18_000))
    finally:
        KEPT.mkdir(parents=True, exist_ok=True)
        with (KEPT / form).open("a") as file:
            file.writelines(f"{seconds:.4f}\n" for seconds in taken)


@pytest.mark.figure("EX-ENDS")
@pytest.mark.timeout(300)
def test_every_end_is_told_once_and_last(clients: Clients, figures: Figures) -> None:
    def one(seed: int) -> None:
        drawn = random.Random(seed)
        end = drawn.choice(ENDS)(drawn)
        body = header(end.cmd, timeout_s=end.timeout_s) + end.input
        ran = drawn.choice(list(FORMS.values()))(clients, body)
        assert ran == end.expected, (seed, end.cmd)

    run_all(one, figures(ci=300, long=10_000))


def run_all(one: Callable[[int], None], rounds: Iterator[int]) -> None:
    """Rounds side by side; a failure of one is that of the test."""
    with ThreadPoolExecutor(CLIENTS) as pool, ExitStack() as stack:
        pending = []
        for number in rounds:
            pending.append(pool.submit(one, number))
            if len(pending) >= BATCH:
                for done in pending:
                    done.result()
                pending.clear()
        stack.callback(pending.clear)
        for done in pending:
            done.result()


# --- ends of commands ---------------------------------------------------------------------------


def by_code(drawn: random.Random) -> End:
    """An exit status, after output on both streams."""
    code = drawn.randrange(256)
    return End(f"echo out; echo err >&2; exit {code}", Ran(b"out\n", b"err\n", code))


def by_signal(drawn: random.Random) -> End:
    """A signal to the shell itself."""
    name = drawn.choice(list(SIGNALS))
    return End(f"printf %s x; kill -{name} $$", Ran(b"x", b"", 128 + SIGNALS[name]))


def by_signal_of_the_group(drawn: random.Random) -> End:
    """A signal to everything that the command has started."""
    name = drawn.choice(["KILL", "TERM"])
    cmd = f"sleep 1000 & sleep 1000 & kill -{name} 0; sleep 1000"
    return End(cmd, Ran(b"", b"", 128 + SIGNALS[name]))


def with_much_output(drawn: random.Random) -> End:
    """Bytes that are still on their way when the command ends."""
    size, code = drawn.randrange(1, 900_000), drawn.randrange(256)
    cmd = f"yes | head -c {size}; exit {code}"
    return End(cmd, Ran((b"y\n" * (size // 2 + 1))[:size], b"", code))


def with_closed_streams(drawn: random.Random) -> End:
    """Both streams end long before the command does."""
    code = drawn.randrange(256)
    return End(f"echo x; exec >&- 2>&-; sleep 0.05; exit {code}", Ran(b"x\n", b"", code))


def with_a_child_that_stays(drawn: random.Random) -> End:
    """Somebody else keeps the streams open."""
    code = drawn.randrange(256)
    return End(f"sleep 3 & echo x; exit {code}", Ran(b"x\n", b"", code))


def with_unread_input(drawn: random.Random) -> End:
    """Input that nobody wants, some of it or all."""
    data = drawn.randbytes(drawn.randrange(1, 400_000))
    wanted = drawn.randrange(0, 100)
    return End(f"head -c {wanted}; exit 7", Ran(data[:wanted], b"", 7), data)


def with_input(drawn: random.Random) -> End:
    """All input comes back."""
    data = drawn.randbytes(drawn.randrange(0, 400_000))
    return End("cat", Ran(data, b"", 0), data)


def by_timeout(drawn: random.Random) -> End:
    """The command's own time is over."""
    cmd = drawn.choice(["echo x; sleep 1000", "echo x; sleep 1000 & wait"])
    said = b"boxd: the command was ended after its timeout of 3 s\n"
    # Long enough for a busy machine to come to `echo`.
    return End(cmd, Ran(b"x\n", said, 124), timeout_s=3)


ENDS = (
    *(by_code, by_signal, by_signal_of_the_group, with_much_output, with_closed_streams) * 3,
    *(with_unread_input, with_input) * 3,
    *(with_a_child_that_stays, by_timeout),
)
