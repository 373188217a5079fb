"""Compares the HTTP API with its parts: `python -m benchmarks.http.measure [--quick]`.

Runs on its own service with one box and one client. Writes `http.json` and `http.md` into
`benchmarks/results`. Rates are medians in MB/s (10^6 bytes) of alternating transfers. Each has a
ratio to its reference in the same run. Run it on an otherwise idle machine.

================  ==============================================================================
exec_ms           `true` in a running box, buffered, on a persistent connection
list_200_ms       `GET /v1/boxes` with 200 boxes: a real one, and rows of suspended boxes
tls_ask_ms        `GET /v1/tls-ask` for an existing box
wrk_get_ratio     a file over HTTP / the same file through the mount, both for the first time
wrk_put_ratio     a file over HTTP / through the mount with fsync; both are durable
proxy_ratio       curl of a file of `python3 -m http.server` in the box: with / without the proxy
proxy_added_ms    p50 of a small request with the proxy, minus the p50 without
================  ==============================================================================

Files also go through the drive operations in this process, which shows the overhead of HTTP. Two
ends that only send and receive show the largest overhead of the proxy.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import asyncpg

from benchmarks.boxes.measure import CALM, complain
from benchmarks.http.client import HOST, Client
from benchmarks.http.drive import InProcess
from benchmarks.http.report import report
from benchmarks.http.workloads import FULL, LISTED, QUICK, TEXT, Target, measure
from benchmarks.report import asked, machine
from benchmarks.ssh.measure import agent_of
from boxd.embedded.postgres import EmbeddedPostgres
from tests.e2e.service import Person, Service
from wrkfs.config import VolumeConfig

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.http.workloads import Size

BOX = "live"
APP_PORT, FILES_PORT = 9000, 9001
DOMAIN = "preview.test"
FLAGS = f"{CALM} --no-templates --preview-domain {DOMAIN}"
START_S = 30.0
TIERS = f"[default]\nboxes = {LISTED + 10}\n"
SLEEPERS = """
INSERT INTO boxd.box SELECT (jsonb_populate_record(box, jsonb_build_object(
    'id', md5(box.id || number), 'name', 'asleep' || number, 'state', 'suspended', 'memory', false
))).* FROM boxd.box AS box, generate_series(1, $1) AS number WHERE box.name = $2
"""
"""Inserts rows like those of boxes whose disks were lost."""


def main() -> None:
    """Measure and report."""
    quick, to = asked("http")
    facts = machine()
    size = QUICK if quick else FULL
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="boxd-bench-")))
        target = stack.enter_context(served(directory, size))
        found = measure(target, size)
    report(found, size, facts, to)


@contextmanager
def served(directory: Path, size: Size = QUICK) -> Iterator[Target]:
    """Yield a service with one user, one running box with two apps, and 199 rows of others."""
    state = directory / "state"
    state.mkdir(mode=0o700)
    (state / "tiers.toml").write_text(TIERS)
    service = Service(state, FLAGS)
    try:
        service.start()
        person = Person(service, directory / "home")
        key = person.new_key("bench")
        person.run(BOX, "echo here > /wrk/here")
        asyncio.run(_add_sleepers(state))
        # The restart makes the service read the new rows.
        service.interrupt()
        service.start()
        person.run(BOX, "true")
        _start_apps(person, service.api_port, key, size)
        (box,) = (one for one in json.loads(person.run("cli", "ls --json")) if one["name"] == BOX)
        with closing(InProcess(_volume(service, directory))) as drive:
            yield Target(
                port=service.api_port,
                key=key,
                box=BOX,
                daemon=service.daemon_pid(),
                inside=agent_of(box["id"]),
                app=APP_PORT,
                files=FILES_PORT,
                preview=f"{box['id'][:12]}-{APP_PORT}.{DOMAIN}",
                mount=_mount(state),
                drive=drive,
            )
    finally:
        service.close()
        complain(service)


async def _add_sleepers(state: Path) -> None:
    connection = await asyncpg.connect(EmbeddedPostgres(state / "postgres").dsn())
    try:
        await connection.execute(SLEEPERS, LISTED - 1, BOX)
    finally:
        await connection.close()


def _start_apps(person: Person, api_port: int, key: str, size: Size) -> None:
    """Start the apps in the box, and wait until they answer."""
    text = Path(__file__).with_name("app.py").read_bytes()
    person.run(BOX, "cat > /tmp/app.py", stdin=text)
    person.run(BOX, f"mkdir /tmp/www && head -c {size.bytes} /dev/urandom > /tmp/www/data")
    for program in (
        f"/tmp/app.py {APP_PORT}",
        f"-m http.server {FILES_PORT} --bind {HOST} -d /tmp/www",
    ):
        person.run(BOX, f"setsid python3 -I {program} </dev/null >/dev/null 2>&1 &")
    client = Client(api_port, key)
    end = time.monotonic() + START_S
    for port, path in ((APP_PORT, "small"), (FILES_PORT, "")):
        while client.request("GET", f"/v1/boxes/{BOX}/proxy/{port}/{path}").status != 200:
            if time.monotonic() > end:
                raise RuntimeError(f"the app on port {port} of the box does not answer")
            time.sleep(0.05)
    if client.request("POST", f"/v1/exec/{BOX}?stream=false", b"true", TEXT).status != 200:
        raise RuntimeError("the box cannot run a command")
    client.close()


def _volume(service: Service, directory: Path) -> VolumeConfig:
    """Return the configuration of the only owner's drive."""
    here = f"--state-dir={service.state_dir}"
    line = service.command("boxd", "volumes", "ls", here).splitlines()[1]
    file = directory / "credentials"
    service.command("boxd", "volumes", "credentials", line.split()[0], str(file), here)
    return VolumeConfig.from_json(file.read_text())


def _mount(state: Path) -> Path:
    """Return the path at which the service has mounted the drive."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        place = line.split()[4]
        if place.startswith(str(state)) and place.endswith("/mnt") and " - fuse" in line:
            return Path(place)
    raise RuntimeError("the drive is not mounted")


if __name__ == "__main__":
    main()
