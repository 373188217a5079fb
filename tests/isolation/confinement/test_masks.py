"""Masked paths take no write, in a new box and after every kind of restore.

A box whose mounts lack an option of its bundle does not run: a restore ends, and a box that an
older service left is ended when the next one starts.
"""

from __future__ import annotations

import hashlib
import json
import os
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
    if os.path.isdir(path):
        attempts = {
            "create": lambda: open(path + "/fill", "w"),
            "mkdir": lambda: os.mkdir(path + "/new"),
            "chmod": lambda: os.chmod(path, 0o777),
            "chown": lambda: os.chown(path, 1, 1),
            "utime": lambda: os.utime(path),
        }
        for name, attempt in attempts.items():
            try:
                attempt()
            except OSError:
                continue
            done.append([name, path])
print(json.dumps(done))
"""
DEBUG = "/sys/kernel/debug"


async def writes(host: BoxHost, box: str) -> list[list[str]]:
    """What succeeded of the attempts of root in a box to change masked directories."""
    paths = [path for path in bundle.MASKED_PATHS if Path(path).exists()]
    assert any(Path(path).is_dir() for path in paths)
    result = await host.run(box, "/usr/bin/python3", "-I", "-c", WRITES, *paths)
    done: list[list[str]] = json.loads(result.out)
    return done


def shows_the_hosts_null_device(host: BoxHost, box: str) -> list[str]:
    """Masked files at which a box could change the mode of the host's /dev/null."""
    root = Path(f"/proc/{host.pid(box)}/root")
    device = os.stat("/dev/null").st_dev
    files = [path for path in bundle.MASKED_PATHS if Path(path).is_file()]
    assert files
    return [path for path in files if (root / path.lstrip("/")).stat().st_dev == device]


async def test_masked_paths_of_a_new_box_take_no_write(box_host: BoxHost) -> None:
    box = await box_host.box()
    assert await writes(box_host, box) == []
    assert shows_the_hosts_null_device(box_host, box) == []


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
async def test_masked_paths_of_a_restored_box_take_no_write(sleepy: Sleepy, way: Way) -> None:
    guest = await way(sleepy)
    assert await writes(sleepy.host, guest.box) == []
    assert shows_the_hosts_null_device(sleepy.host, guest.box) == []


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
    options = "remount,bind,rw,nosuid,nodev,noexec"
    await run("nsenter", "-t", str(host.pid(unsafe)), "-m", "mount", "-o", options, DEBUG)
    successor = RuncBackend(host.config, init=STAND_IN, judge=judging(verdict))
    with assert_logs(f"its mounts are not safe: {DEBUG} is not ro"):
        await successor.setup()
    assert {one.box_id: one.running for one in await successor.list()} == {
        unsafe: False,
        safe: True,
    }
    await successor.start(unsafe)
    assert await writes(host, unsafe) == []


NAMES = (r"\377", r"\302\205x", r"\014 - x", "renamed", "")
"""For printf(1). Without a name the device is removed."""


async def _rename_null_device(host: BoxHost, box: str, name: str) -> None:
    script = f"mv /dev/null \"/dev/$(printf '{name}')\"" if name else "rm /dev/null"
    assert (await host.run(box, "sh", "-c", script)).status == 0


@pytest.mark.parametrize("name", NAMES)
async def test_names_that_a_box_gives_to_its_null_device_do_no_harm(
    sleepy: Sleepy, verdict: criu.Verdict, name: str
) -> None:
    """The table of mounts shows the name: each masked file is a mount of the null device."""
    host = sleepy.host
    box, other = await host.box(), await host.box()
    script = f"mv /dev/null \"/dev/$(printf '{name}')\"" if name else "rm /dev/null"
    assert (await host.run(box, "sh", "-c", script)).status == 0
    successor = RuncBackend(host.config, init=STAND_IN, judge=judging(verdict))
    await successor.setup()
    assert {one.box_id: one.running for one in await successor.list()} == {box: True, other: True}


@pytest.mark.parametrize("name", [name for name in NAMES if " " not in name])
async def test_a_box_with_another_null_device_keeps_its_memory(sleepy: Sleepy, name: str) -> None:
    """`ld -o /dev/null` by root removes it, for example.

    CRIU reads no table with other blanks in a name: such a box is refused, and stays awake.
    """
    guest = await sleepy.guest()
    await _rename_null_device(sleepy.host, guest.box, name)
    for _ in range(2):
        await sleepy.suspend(guest)
        await sleepy.resume(guest)
    assert shows_the_hosts_null_device(sleepy.host, guest.box) == []
