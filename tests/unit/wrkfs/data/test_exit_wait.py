"""A process whose last action is a request ends with its own exit status."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from wrkfs.data import exit_wait

if TYPE_CHECKING:
    from collections.abc import Iterator

PROCESSES = 12
"""Without the wait, one of 12 to 20 processes dies of SIGABRT. The next test is deterministic."""

SCRIPT = """
import asyncio, sys
from wrkfs.config import StoreConfig
from wrkfs.data.s3 import S3Blocks
from wrkfs.errors import WrkfsError

async def main():
    store = S3Blocks(StoreConfig(sys.argv[1], "b", "x", "y", "key", "none"))
    try:
        await store.put("x/object", b"x")
    except WrkfsError as error:
        print("refused")

asyncio.run(main())
"""


class Refusing(BaseHTTPRequestHandler):
    """Answers every request with an error at once."""

    def do_PUT(self) -> None:
        """No."""
        self.send_response(403)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture
def endpoint() -> Iterator[str]:
    """A store that refuses everything."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_no_thread_of_the_store_ends_the_process(endpoint: str) -> None:
    def ended(_: int) -> tuple[int, str, str]:
        words = [sys.executable, "-c", SCRIPT, endpoint]
        done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
        return done.returncode, done.stdout, done.stderr

    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(ended, range(PROCESSES))) == {(0, "refused\n", "")}


def test_a_thread_that_works_is_waited_for() -> None:
    began, done, ends = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text(exit_wait.THREAD_NAME)
        began.set()
        until = time.monotonic() + 20 * exit_wait.PAUSE
        while time.monotonic() < until:
            pass
        done.set()
        ends.wait()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        began.wait()
        assert exit_wait.threads()
        exit_wait.wait_until_idle()
        assert done.is_set()
    finally:
        ends.set()
        thread.join()


def test_one_that_never_sleeps_is_not_waited_for_for_ever() -> None:
    ends, began = threading.Event(), threading.Event()

    def work() -> None:
        Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text(exit_wait.THREAD_NAME)
        began.set()
        while not ends.is_set():
            pass

    thread = threading.Thread(target=work)
    thread.start()
    try:
        began.wait()
        exit_wait.wait_until_idle()
    finally:
        ends.set()
        thread.join()
