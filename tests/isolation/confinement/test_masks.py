"""Masked paths take no write, in a new box and after every kind of restore.

A box whose mounts lack an option of its bundle does not run: a restore ends, and a box that an
older service left is ended when the next one starts.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from boxd.backends.checkpoint import memory_image
from boxd.backends.host.run import run
from boxd.backends.oci import bundle
from boxd.backends.runc.backend import RuncBackend
from boxd.errors import MemoryLost
from tests.harness.boxes.backend import STAND_IN
from tests.harness.boxes.guest import STATE
from tests.harness.boxes.lives import WAYS
from tests.harness.boxes.suspending import judging

if TYPE_CHECKING:
    from boxd.backends.checkpoint import criu
    from tests.harness.boxes.backend import BoxHost
    from tests.harness.boxes.lives import Way
    from tests.harness.boxes.suspending import Sleepy
    from tests.plugins.strict_logs import AssertLogs

pytestmark = pytest.mark.timeout(300)

WRITES = """
import json, os, sys
done = []
for path in sys.argv[1:]:
    attempts = {
        "chmod": lambda: os.chmod(path, 0o777),
        "chown": lambda: os.chown(path, 1, 1),
        "utime": lambda: os.utime(path, (1, 1)),
        "remove": lambda: os.unlink(path),
        "rename": lambda: os.rename(path, path + ".old"),
    }
    if os.path.isdir(path):
        attempts["create"] = lambda: open(path + "/fill", "w")
        attempts["mkdir"] = lambda: os.mkdir(path + "/new")
        attempts["remove"] = lambda: os.rmdir(path)
    for name, attempt in attempts.items():
        try:
            attempt()
        except OSError:
            continue
        done.append([name, path])
print(json.dumps(done))
"""


DEVICES = ("/dev/full", "/dev/null", "/dev/random", "/dev/tty", "/dev/urandom", "/dev/zero")
"""Devices of the host in a box."""


async def writes(host: BoxHost, box: str) -> list[list[str]]:
    """What succeeded of the attempts of root in a box to change masked paths and devices."""
    paths = [path for path in (*bundle.MASKED_PATHS, *DEVICES) if Path(path).exists()]
    assert any(Path(path).is_dir() for path in paths)
    result = await host.run(box, "/usr/bin/python3", "-I", "-c", WRITES, *paths)
    done: list[list[str]] = json.loads(result.out)
    return done


async def test_masked_paths_of_a_new_box_take_no_write(box_host: BoxHost) -> None:
    box = await box_host.box()
    assert await writes(box_host, box) == []


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
async def test_masked_paths_of_a_restored_box_take_no_write(sleepy: Sleepy, way: Way) -> None:
    guest = await way(sleepy)
    assert await writes(sleepy.host, guest.box) == []


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
async def test_a_restore_that_loses_an_option_ends_before_a_process_runs(
    sleepy: Sleepy, way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The guest writes its state as soon as it runs, and 100 times a second."""
    backend, names = sleepy.host.backend, sleepy.host.names
    resume, before = backend.resume, dict[str, bytes]()

    async def resume_with_other_demands(box: str, drive: Path | None) -> None:
        _demand_noexec(sleepy, box)
        before[box] = _written(sleepy, box)
        await resume(box, drive)

    monkeypatch.setattr(backend, "resume", resume_with_other_demands)
    with pytest.raises(MemoryLost, match="/run is not noexec"):
        await way(sleepy)
    ((box, state),) = before.items()
    assert _written(sleepy, box) == state
    (found,) = [one for one in await backend.list() if one.box_id == box]
    assert (found.running, found.memory) == (False, False)
    assert not list(names.paths(box).relay.glob("gate"))
    await backend.start(box)
    assert (await sleepy.host.run(box, "true")).status == 0


def _demand_noexec(sleepy: Sleepy, box: str) -> None:
    """Has the configuration of a sleeping box demand an option that no restore brings."""
    place = sleepy.host.names.paths(box).bundle / "config.json"
    config = json.loads(place.read_text())
    (run,) = [mount for mount in config["mounts"] if mount["destination"] == "/run"]
    run["options"].append("noexec")
    _rewrite(sleepy, box, config)


def _written(sleepy: Sleepy, box: str) -> bytes:
    """The last state that the guest has written to the disk of a box."""
    state, name = sleepy.host.config.state_dir, str(STATE).lstrip("/")
    (layer,) = (*state.glob(f"boxes/{box}/layer"), *state.glob(f"disks/boxes/{box}/layer"))
    return (layer / "upper" / name).read_bytes()


async def test_memory_whose_mounts_would_lose_options_is_not_restored(sleepy: Sleepy) -> None:
    guest = await sleepy.guest()
    await sleepy.suspend(guest)
    bundle_dir = sleepy.host.names.paths(guest.box).bundle
    config = json.loads((bundle_dir / "config.json").read_text())
    masks = [mount for mount in config["mounts"] if mount["destination"].startswith("/sys/kernel")]
    for mask in masks:
        mask["source"] = str(bundle_dir)
    _rewrite(sleepy, guest.box, config)
    with pytest.raises(MemoryLost, match="would lose their options"):
        await sleepy.resume(guest)


def _rewrite(sleepy: Sleepy, box: str, config: dict[str, object]) -> None:
    """Gives a sleeping box another configuration, which its memory takes for its own."""
    place = sleepy.host.names.paths(box).bundle / "config.json"
    place.write_text(json.dumps(config))
    digest = hashlib.sha256(place.read_bytes()).hexdigest()
    memory_image.adopt(sleepy.memory(box), box, digest)


async def test_a_box_with_other_mounts_is_ended_when_a_service_starts(
    sleepy: Sleepy, verdict: criu.Verdict, assert_logs: AssertLogs
) -> None:
    host = sleepy.host
    unsafe, safe = await host.box(), await host.box()
    entered = ("nsenter", "-t", str(host.pid(unsafe)), "-U", "-m")
    await run(*entered, "mount", "-o", "remount,bind,rw,nodev", "/run")
    successor = RuncBackend(host.config, init=STAND_IN, judge=judging(verdict))
    with assert_logs("its mounts are not safe: /run is not nosuid"):
        await successor.setup()
    assert {one.box_id: one.running for one in await successor.list()} == {
        unsafe: False,
        safe: True,
    }
    await successor.start(unsafe)
    assert await writes(host, unsafe) == []
