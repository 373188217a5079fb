"""A program in a box that exposes its state in memory. It runs as a script in the `debian` image.

Every 10 ms it replaces the file STATE with one JSON object: `pid`, a random `nonce`, a growing
`tick`, `seen` (names that appeared in the watched directories), and further requested fields.
Arguments are words: `memory=MIB`, `serve=PORT`, `watch=DIR,DIR`, `file=PATH` (stays open and gets a
line with each tick), `cwd=DIR`, `map=PATH` (mapped; the state has its first byte).
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import secrets
import socket
import struct
import sys
import threading
import time
from pathlib import Path
from typing import Any

STATE = Path("/root/state")
TICK = 0.01
_IN_CREATE = 0x100
_EVENT = struct.Struct("iIII")
_libc = ctypes.CDLL(None, use_errno=True)


def serve(port: int, state: dict[str, Any]) -> None:
    """Answer every connection with the state."""
    server = socket.create_server(("", port))

    def answer() -> None:
        while True:
            connection, _ = server.accept()
            with connection:
                connection.sendall(json.dumps(state).encode())

    threading.Thread(target=answer, daemon=True).start()


def watch(directories: list[str], state: dict[str, Any]) -> None:
    """Record names that appear in directories."""
    descriptor = _libc.inotify_init1(os.O_CLOEXEC)
    places = {
        _libc.inotify_add_watch(descriptor, place.encode(), _IN_CREATE): place
        for place in directories
    }
    if descriptor < 0 or min(places) < 0:
        raise OSError(ctypes.get_errno(), "inotify")

    def note() -> None:
        while True:
            data = os.read(descriptor, 65536)
            while data:
                which, _, _, length = _EVENT.unpack_from(data)
                name = data[_EVENT.size : _EVENT.size + length].rstrip(b"\0").decode()
                state["seen"] = [*state["seen"], f"{places[which]}/{name}"]
                data = data[_EVENT.size + length :]

    threading.Thread(target=note, daemon=True).start()


def main() -> None:
    """Run until the process is killed."""
    wishes = dict(word.split("=", 1) for word in sys.argv[1:])
    ballast = bytearray(secrets.token_bytes(2**20)) * int(wishes.get("memory", "1"))
    state: dict[str, Any] = {
        "pid": os.getpid(),
        "nonce": secrets.token_hex(8),
        "tick": 0,
        "seen": [],
        "ballast": len(ballast),
    }
    if "cwd" in wishes:
        os.chdir(wishes["cwd"])
    file = os.open(wishes["file"], os.O_RDWR | os.O_CREAT) if "file" in wishes else -1
    mapped = None
    if "map" in wishes:
        with open(wishes["map"], "rb") as source:
            mapped = mmap.mmap(source.fileno(), 0, prot=mmap.PROT_READ)
    if "serve" in wishes:
        serve(int(wishes["serve"]), state)
    if "watch" in wishes:
        watch(wishes["watch"].split(","), state)
    while True:
        state["tick"] += 1
        if file >= 0:
            os.write(file, f"{state['tick']}\n".encode())
            state["links"] = os.fstat(file).st_nlink
        if mapped is not None:
            state["first"] = mapped[0]
        if "cwd" in wishes:
            try:
                state["cwd"] = os.getcwd()
            except FileNotFoundError:
                state["cwd"] = ""
        new = STATE.with_suffix(".new")
        new.write_text(json.dumps(state))
        new.rename(STATE)
        time.sleep(TICK)


if __name__ == "__main__":
    main()
