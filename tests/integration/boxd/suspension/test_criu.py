"""The verdict on this host: real boxes are suspended and resumed by the CRIU that is here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from boxd import doctor
from boxd.backends.checkpoint.criu import KEPT, WORK, Tools, find, verdict
from boxd.backends.checkpoint.criu_selftest import BOX, SelfTestFailed, _SelfTest, try_out
from boxd.backends.host.names import HostNames
from boxd.config import Address, Config
from boxd.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from boxd.backends.checkpoint import criu

pytestmark = pytest.mark.timeout(180)

OTHER = "other"
"""A directory for self-tests without a verdict."""


def leftovers(work: Path) -> list[str]:
    """What a self-test with that directory has on this host."""
    names = HostNames(Config(state_dir=work).instance, work)
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    places = [work, names.runc_root.parent, names.netns_path(BOX)]
    places += Path("/sys/fs/cgroup").glob(f"*{names.cgroup_parent}")
    places += Path("/sys/fs/cgroup").glob(names.cgroup_parent.lstrip("/"))
    return [*(str(p) for p in places if p.exists()), *(m for m in mounts if f"{work}/" in m)]


@pytest.fixture
async def program() -> criu.Program:
    """The CRIU of this host."""
    found = await find()
    if found is None or not found.suffices:
        pytest.fail("there is no CRIU 4.3 for the tests; run scripts/criu")
    return found


@pytest.fixture
def state(tmp_path: Path) -> Iterator[Path]:
    """A state directory; nothing but a verdict may be left in it and of it."""
    place = tmp_path / "state"
    place.mkdir(mode=0o700)
    yield place
    assert {file.name for file in place.iterdir()} <= {KEPT}
    assert [line for name in (WORK, OTHER) for line in leftovers(place / name)] == []


def refusing(place: Path, action: str, text: str) -> Path:
    """A CRIU that answers the version it is asked for, and ends otherwise."""
    place.mkdir()
    wrapper = place / "criu"
    wrapper.write_text(f'#!/bin/sh\n[ "$1" = {action} ] || exit 1\n{text}\n')
    wrapper.chmod(0o755)
    return wrapper


async def test_boxes_suspend_here(state: Path, program: criu.Program) -> None:
    found = await verdict(state)
    assert found.suspends, found.text
    assert found.program == program
    kept = (state / KEPT).read_text()
    assert json.loads(kept)["refusal"] == ""
    assert await verdict(state) == found
    assert (state / KEPT).read_text() == kept


async def test_a_criu_that_fails_is_refused_and_nothing_stays(state: Path, tmp_path: Path) -> None:
    with pytest.raises(SelfTestFailed, match="a box could not suspend: "):
        await try_out(refusing(tmp_path / "bin", "--version", "echo Version: 4.3"), state / OTHER)


async def test_its_refusal_is_the_verdict(state: Path, tmp_path: Path) -> None:
    wrapper = refusing(tmp_path / "bin", "--version", "echo Version: 4.3")
    found = await verdict(state, tools=Tools(prefix=wrapper.parents[1], trial=try_out))
    if found.program is not None and found.program.path != wrapper:
        pytest.skip("the distribution's CRIU is new enough")
    assert not found.suspends
    assert "CRIU 4.3 failed its trial: a box could not suspend" in found.text


async def test_what_an_interrupted_one_left_is_removed(state: Path, program: criu.Program) -> None:
    work = state / OTHER
    test = _SelfTest(program.path, work)
    await test.prepare()
    await test.start()
    with pytest.raises(Unavailable, match="no box can start"):
        await test.start()
    assert (test._names.runc_root / BOX).is_dir()
    await try_out(program.path, work)


async def test_one_without_time_leaves_nothing(
    state: Path, program: criu.Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("boxd.backends.checkpoint.criu_selftest.TIMEOUT", 0.2)
    with pytest.raises(Unavailable, match="did not end"):
        await try_out(program.path, state / OTHER)


def test_doctor_tells(state: Path) -> None:
    config = Config(state_dir=state, ssh_addr=Address("127.0.0.1", 0))
    check = doctor.suspending(config)
    assert check.name == "suspend"
    assert not check.needed
    assert check.ok or check.remedy
    assert check.finding.startswith("CRIU" if check.ok else "boxes cannot suspend here: ")
