"""The benchmark of the HTTP API measures what it says, and is told as programs read it."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from benchmarks.http import app as test_program
from benchmarks.http.drive import InProcess
from benchmarks.http.report import GOALS, report
from benchmarks.http.workloads import LISTED, QUICK, Target, measure
from tests.harness.http.drives import http_drive
from tests.harness.http.web import ALICE
from tests.harness.wait import until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.harness.http.web import Web
    from tests.harness.mounts.drive import MountProcess
    from wrkfs.config import VolumeConfig

LITTLE = replace(QUICK, requests=2, warm=1, bytes=6 << 20, transfers=1, seconds=0.05)


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def answers(port: int) -> bool:
    """Whether somebody listens."""
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


async def test_the_api_is_measured(
    volume: VolumeConfig, mount: Callable[[], MountProcess], web: Web, tmp_path: Path
) -> None:
    await http_drive(web, volume)
    box_id = (await web.operations.boxes.up(ALICE, "live")).id
    box = await web.store.box(box_id)
    assert box is not None
    for number in range(LISTED - 1):
        await web.store.add_box(replace(box, id=f"{number:032x}", name=f"asleep{number}"))
    port, files = free_port(), free_port()
    (tmp_path / "data").write_bytes(bytes(LITTLE.bytes))
    server = ("-m", "http.server", str(files), "--bind", "127.0.0.1", "-d", str(tmp_path))
    apps = [
        await asyncio.create_subprocess_exec(
            sys.executable, *words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        for words in ((str(test_program.__file__), str(port)), server)
    ]
    try:
        await until(lambda: answers(port) and answers(files))
        target = Target(
            port=web.address.port,
            key=web.key,
            box="live",
            daemon=os.getpid(),
            inside=os.getpid(),
            app=port,
            files=files,
            preview="",
            mount=mount().path,
            drive=await asyncio.to_thread(InProcess, volume),
        )
        found = await asyncio.to_thread(measure, target, LITTLE)
        await asyncio.to_thread(target.drive.close)
    finally:
        for app in apps:
            app.terminate()
            await app.wait()
    report(found, LITTLE, {}, tmp_path)
    figures = json.loads((tmp_path / "http.json").read_text())
    assert figures.keys() >= GOALS.keys()
    for name in ("exec_ms", "list_200_ms", "proxy_small_ms"):
        assert figures[name].keys() == {"p50", "p95", "p99", "success"}
        assert figures[name]["success"] == 1.0
    for name in ("wrk_get", "wrk_put", "proxy", "proxy_bare"):
        ours, *theirs = figures[f"{name}_MBps"].values()
        assert figures[f"{name}_ratio"] > 0
        assert abs(figures[f"{name}_ratio"] - ours / theirs[0]) < 0.01
    table = (tmp_path / "http.md").read_text()
    for row in ("GET /v1/boxes, 200 boxes", "| PUT /v1/wrk | in process |", "Added by the proxy"):
        assert row in table
