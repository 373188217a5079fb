"""Chromium without a window and JupyterLab with a kernel, both through a websocket."""

from __future__ import annotations

import http.client
import importlib
import json
import re
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.integration.boxd.suspension.programs.load import (
    ANSWER_TIMEOUT,
    Load,
    output,
    program,
    until,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

DEBUG_PORT, LAB_PORT = 9222, 8888
PAGE = """<!DOCTYPE html><title>page</title><body><script>
let ticks = 0, work = 0, calls = 0, frames = 0;
const nonce = Math.random();
setInterval(() => { ticks += 1; document.body.dataset.ticks = ticks; }, 10);
const code = "let n = 0; setInterval(() => postMessage(++n), 10)";
new Worker(URL.createObjectURL(new Blob([code]))).onmessage = (event) => { work = event.data; };
const state = () => JSON.stringify({calls: ++calls, ticks, work, nonce});
</script>"""


class Channel:
    """A websocket that stays open, with JSON messages."""

    def __init__(self, address: str) -> None:
        library = importlib.import_module("websocket")  # of the image, not of the tests
        self._socket = library.create_connection(address, timeout=ANSWER_TIMEOUT)

    def send(self, message: dict[str, Any]) -> None:
        """Send a message."""
        self._socket.send(json.dumps(message))

    def receive(self) -> dict[str, Any]:
        """Return the next message."""
        message: dict[str, Any] = json.loads(self._socket.recv())
        return message


def ask(port: int, path: str, body: str | None = None) -> str:
    """Return the answer of a server in the box. `body` makes it a POST request."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWER_TIMEOUT)
    connection.request("GET" if body is None else "POST", path, body)
    text = connection.getresponse().read().decode()
    connection.close()
    return text


def pages() -> list[dict[str, str]]:
    """Return the pages that Chromium has open and that are loaded."""
    listed: list[dict[str, str]] = json.loads(ask(DEBUG_PORT, "/json"))
    return [page for page in listed if page["title"] == "page"]


@program("chromium")
def chromium(load: Load) -> Iterator[None]:
    """A page with a timer and a worker. A box has no namespaces for Chromium's own sandbox."""
    load.version = output("chromium-headless-shell", "--version")
    Path("/root/page.html").write_text(PAGE)
    options = ("--no-sandbox", f"--remote-debugging-port={DEBUG_PORT}", "--remote-allow-origins=*")
    load.start("chromium", "chromium-headless-shell", *options, "file:///root/page.html")
    load.wait(pages)
    until(lambda: bool(pages()))
    tab, number = Channel(pages()[0]["webSocketDebuggerUrl"]), 0

    def state() -> dict[str, Any]:
        """Return what the page counts."""
        nonlocal number
        number += 1
        call = {"method": "Runtime.evaluate", "params": {"expression": "state()"}, "id": number}
        tab.send(call)
        answer = tab.receive()
        values: dict[str, Any] = json.loads(answer["result"]["result"]["value"])
        if (answer["id"], values["calls"]) != (number, number):
            raise RuntimeError(f"the page answered {answer} to call {number}")
        return values

    last = state()
    while True:

        def goes_on(before: dict[str, Any] = last) -> bool:
            nonlocal last
            last = state()
            if last["nonce"] != before["nonce"]:
                raise RuntimeError("the page was loaded again")
            return all(last[name] > before[name] for name in ("ticks", "work"))

        until(goes_on)
        yield


@program("jupyterlab")
def jupyterlab(load: Load) -> Iterator[None]:
    """A kernel that adds to a variable, with a thread beside it."""
    load.version = output("/opt/jupyter/bin/jupyter-lab", "--version")
    options = ("--allow-root", "--no-browser", "--IdentityProvider.token=", f"--port={LAB_PORT}")
    origin = ("--ServerApp.disable_check_xsrf=True", "--ServerApp.root_dir=/root")
    load.start("jupyterlab", "/opt/jupyter/bin/jupyter-lab", *options, *origin)
    load.wait(lambda: ask(LAB_PORT, "/api/status"))
    kernel = json.loads(ask(LAB_PORT, "/api/kernels", '{"name": "python3"}'))["id"]
    channels = Channel(f"ws://127.0.0.1:{LAB_PORT}/api/kernels/{kernel}/channels")

    def execute(code: str) -> str:
        """Run code in the kernel; return what it prints."""
        message = uuid.uuid4().hex
        header = {"msg_id": message, "msg_type": "execute_request", "username": "", "session": "s"}
        content = {"code": code, "silent": False, "store_history": True}
        request = {"header": header, "parent_header": {}, "metadata": {}, "content": content}
        channels.send(request | {"channel": "shell"})
        text = ""
        while True:
            answer = channels.receive()
            if answer["parent_header"].get("msg_id") != message:
                continue
            if answer["msg_type"] == "stream":
                text += answer["content"]["text"]
            if answer["msg_type"] == "error":
                raise RuntimeError("\n".join(answer["content"]["traceback"]))
            if answer["msg_type"] == "status" and answer["content"]["execution_state"] == "idle":
                return text.strip()

    pid = int(execute("import os, threading, time; n = work = 0; print(os.getpid())"))
    load.pids["kernel"] = pid
    execute(
        "def count():\n  global work\n  while True:\n    work += 1; time.sleep(0.01)\n"
        "threading.Thread(target=count, daemon=True).start()"
    )
    number, work = 0, 0
    while True:
        number += 1
        answer = execute("n += 1; print(os.getpid(), n)")
        if answer != f"{pid} {number}":
            raise RuntimeError(f"the kernel answered {answer}, not {pid} {number}")

        def thread_goes_on(before: int = work) -> bool:
            nonlocal work
            work = int(re.sub(r"\D", "", execute("print(work)")))
            return work > before

        until(thread_goes_on)
        yield
