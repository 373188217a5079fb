"""Programs that people run go on after suspensions under load, each 20 times in the long run.

docs/reference/suspendable-programs.md lists them.
"""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

from tests.harness.boxes.backend import IMAGES_DIR, BoxHost, open_box_host
from tests.harness.boxes.suspending import judging
from tests.harness.wait import until
from tests.integration.boxd.suspension import programs
from tests.integration.boxd.suspension.programs import load, main

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from boxd.backends.checkpoint import criu
    from tests.plugins.figures import Figures

pytestmark = pytest.mark.timeout(600)

CHANGES = 3
"""A load must check so many changes before and after each suspension."""
BEGIN_TIMEOUT = 180.0
ARCHIVE = "/root/programs.zip"
GO_CACHE = IMAGES_DIR.parent / "go"
MEMORY_MB, PIDS = 2048, 1024
assert main.MODULES
NAMES = list(load.PROGRAMS)


@dataclass
class Subject:
    """A box with one program under load."""

    host: BoxHost
    box: str

    def state(self) -> dict[str, Any]:
        """Return the state of the load. Fail if the program lost anything."""
        place = self.host.names.paths(self.box).root / load.STATE.lstrip("/")
        try:
            state: dict[str, Any] = json.loads(place.read_text())
        except FileNotFoundError:
            return {"count": 0}
        assert not state["error"], state["error"] + self.logs()
        return state

    def logs(self) -> str:
        """Return the ends of the logs of the program and its load."""
        root = self.host.names.paths(self.box).root / "root"
        files = [file for file in root.glob("*.log") if file.is_file()]
        return "\n".join(f"{file.name}:\n{file.read_text()[-2000:]}" for file in files)

    async def goes_on(self, deadline: float = 90.0) -> dict[str, Any]:
        """Wait until the load has checked some changes."""
        goal = self.state()["count"] + CHANGES
        await until(lambda: self.state()["count"] >= goal, deadline)
        return self.state()

    async def cycle(self) -> None:
        """Suspend the box and resume it."""
        backend = self.host.backend
        await backend.freeze(self.box)
        asleep = self.state()
        await backend.save_memory(self.box)
        await backend.stop(self.box)
        await backend.resume(self.box, None)
        awake = await self.goes_on()
        assert awake["count"] > asleep["count"]
        assert awake["pids"] == asleep["pids"]


@pytest_asyncio.fixture
async def host(
    tmp_path: Path, programs_rootfs: Path, verdict: criu.Verdict
) -> AsyncIterator[BoxHost]:
    """Yield a host whose boxes have the programs and can be suspended."""
    judge = judging(verdict)
    async with open_box_host(tmp_path / "state", programs_rootfs, judge=judge) as host:
        yield host


async def begin(host: BoxHost, name: str, directory: Path) -> Subject:
    """Start a program and its load in a new box."""
    box = await host.box(pids=PIDS, mem_mb=MEMORY_MB)
    await host.run(box, "sh", "-c", f"cat > {ARCHIVE}", stdin=archive())
    if name == "go":
        store = "cat > /root/server && chmod +x /root/server"
        await host.run(box, "sh", "-c", store, stdin=go_server(directory).read_bytes())
    command = f"cd /root; setsid python3 {ARCHIVE} {name} </dev/null >/root/load.log 2>&1 &"
    await host.run(box, "env", "HOME=/root", "sh", "-c", command)
    subject = Subject(host, box)
    await subject.goes_on(BEGIN_TIMEOUT)
    return subject


def archive() -> bytes:
    """Return the package `programs` as a program that Python runs."""
    package = programs.__name__.replace(".", "/")
    directory = Path(programs.__file__).parent
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        for file in (*directory.glob("*.py"), *directory.glob("sources/*")):
            archive.write(file, f"{package}/{file.relative_to(directory)}")
        for parent in Path(package).parents[:-1]:
            archive.writestr(f"{parent}/__init__.py", "")
        archive.writestr("__main__.py", f"from {main.__name__} import main\nmain()\n")
    return data.getvalue()


def go_server(directory: Path) -> Path:
    """Return the server of Go as one program without libraries."""
    source = Path(programs.__file__).parent / "sources/server.go"
    environment = {
        "PATH": "/usr/bin:/bin",
        "CGO_ENABLED": "0",
        "GOCACHE": str(GO_CACHE),
        "HOME": str(directory),
    }
    command = [shutil.which("go") or "go", "build", "-o", f"{directory}/server", str(source)]
    subprocess.run(command, env=environment, check=True, timeout=300)
    return directory / "server"


@pytest.mark.figure("PROGRAMS")
@pytest.mark.parametrize("name", NAMES)
async def test_a_program_goes_on(
    host: BoxHost, name: str, tmp_path: Path, figures: Figures
) -> None:
    if name == "go" and shutil.which("go") is None:
        pytest.skip("builds its server with the Go toolchain")
    subject = await begin(host, name, tmp_path)
    for _ in figures(ci=2, long=20):
        await subject.cycle()
