"""The comparison with sshd measures what it says, and is told in the form that programs read."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil

from benchmarks.ssh.report import report
from benchmarks.ssh.sshd import sshd
from benchmarks.ssh.workloads import QUICK, Limit, Side, measure
from tests.e2e.service import Person, Service
from tests.harness.ssh.door_process import door_process

LITTLE = replace(QUICK, connects=2, bytes=1 << 20, transfers=1, own=1, clients=3)
QUANTILES = {"p50", "p95", "p99"}


async def test_the_front_door_is_compared_with_sshd(tmp_path: Path) -> None:
    person = Person(Service(tmp_path / "none"), tmp_path / "home")
    # sshd's files are where root may write only: not below what all may.
    with TemporaryDirectory(prefix="sshd-") as name:
        async with door_process() as door:
            process = psutil.Process(door.process.pid)
            places = [tmp_path / one for one in ("ours", "theirs", "local")]
            for place in places:
                place.mkdir()
            with sshd(Path(name), person.key.with_suffix(".pub")) as server:
                options = person.options
                ours = Side(
                    *("boxd", door.client.port, "web", str(places[0]), options),
                    {"daemon": lambda: sum(process.cpu_times()[:2])},
                )
                theirs = Side(
                    *("sshd", server.port, "root", str(places[1]), options),
                    {"sshd": server.cpu_s},
                )
                sides = (ours, theirs)
                found = await asyncio.to_thread(measure, sides, LITTLE, places[2], Limit(60))
            assert not server.process.is_running()
    report(found, LITTLE, {}, tmp_path)
    figures = json.loads((tmp_path / "ssh.json").read_text())
    assert list(figures) == [
        *("connect_ms", "download_MBps", "upload_MBps", "sftp_get_MBps", "parallel_3_s")
    ]
    connect = figures.pop("connect_ms")
    assert connect.keys() == QUANTILES | {"sshd", "ratio"}
    assert connect["sshd"].keys() == connect["ratio"].keys() == QUANTILES
    for one in figures.values():
        assert one.keys() == {"boxd", "sshd", "ratio"}
        assert all(value > 0 for value in one.values())
    assert abs(connect["ratio"]["p50"] - connect["p50"] / connect["sshd"]["p50"]) < 0.01
    table = (tmp_path / "ssh.md").read_text()
    for row in (
        "scp upload, MB/s",
        "3 parallel clients, s",
        "| scp download | daemon |",
        "sftp get | sshd",
    ):
        assert row in table
