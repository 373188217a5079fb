"""Which CRIU is taken, and what is remembered of its trial; programs and trials are stand-ins."""

from __future__ import annotations

import asyncio
import json
import os
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pytest

from boxd.backends.checkpoint import criu
from boxd.backends.checkpoint.criu import KEPT, WORK, Tools, find, verdict
from boxd.backends.checkpoint.criu_selftest import SelfTestFailed
from boxd.errors import Unavailable

if TYPE_CHECKING:
    from pathlib import Path


@dataclass
class Host:
    """Directories where programs are, and a trial that does as it is told."""

    top: Path
    tried: list[Path] = field(default_factory=list)
    failure: Exception | None = None

    def __post_init__(self) -> None:
        for directory in ("system", "prefix/bin", "state"):
            (self.top / directory).mkdir(parents=True)
        self.program("system/runc", "echo runc version 1.1.5+ds1; echo commit: x")

    @property
    def state(self) -> Path:
        """The state directory."""
        return self.top / "state"

    @property
    def tools(self) -> Tools:
        """Where programs are looked for."""
        return Tools(str(self.top / "system"), self.top / "prefix", self.trial)

    def program(self, name: str, text: str) -> None:
        """Installs a shell script."""
        (self.top / name).write_text(f"#!/bin/sh\n{text}\n")
        (self.top / name).chmod(0o755)

    def system_criu(self, version: str) -> None:
        """Installs the distribution's."""
        self.program("system/criu", f"echo Version: {version}; echo GitID: v{version}")

    def private_criu(self, version: str) -> None:
        """Unpacks one."""
        self.program("prefix/bin/criu", f"echo Version: {version}")

    async def trial(self, program: Path, work: Path) -> None:
        """Stands for the self-test."""
        assert work == self.state / WORK
        self.tried.append(program)
        await asyncio.sleep(0)
        if self.failure is not None:
            raise self.failure

    async def verdict(self, *, again: bool = False) -> criu.Verdict:
        """Of this host."""
        return await verdict(self.state, again=again, tools=self.tools)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


async def test_without_criu(host: Host) -> None:
    found = await host.verdict()
    assert not found.suspends
    assert found.text == "boxes cannot suspend here: CRIU is not installed on this host"
    assert "scripts/criu" in found.remedy
    assert host.tried == []


async def test_an_old_one_is_named_and_not_tried(host: Host) -> None:
    host.system_criu("3.17.1")
    found = await host.verdict()
    assert not found.suspends
    assert "CRIU 3.17.1 is too old, 4.3 or newer is needed" in found.text
    assert "scripts/criu" in found.remedy
    assert host.tried == []


@pytest.mark.parametrize(
    ("system", "private", "taken"),
    [
        ("4.3", "", "system"),
        ("4.3.1", "4.3", "system"),
        ("10.0", "4.3", "system"),
        ("3.17.1", "4.3", "prefix"),
        ("4.2.1", "4.4", "prefix"),
        ("", "4.3", "prefix"),
    ],
)
async def test_the_distributions_is_taken_if_it_is_new_enough(
    host: Host, system: str, private: str, taken: str
) -> None:
    if system:
        host.system_criu(system)
    if private:
        host.private_criu(private)
    program = await find(host.tools)
    assert program is not None
    assert program.path.relative_to(host.top).parts[0] == taken
    assert program.suffices


async def test_of_old_ones_the_newest_is_told(host: Host) -> None:
    host.system_criu("3.17.1")
    host.private_criu("4.2.1")
    program = await find(host.tools)
    assert program is not None
    assert program.text == "4.2.1"


@pytest.mark.parametrize("text", ["exit 127", "echo nothing", "echo Version: 4"])
async def test_one_that_does_not_run_is_none(host: Host, text: str) -> None:
    host.program("prefix/bin/criu", text)
    assert await find(host.tools) is None
    (host.top / "prefix/bin/criu").write_bytes(b"\x7fELF, but not really")
    assert await find(host.tools) is None
    (host.top / "prefix/bin/criu").chmod(0o644)
    assert await find(host.tools) is None


async def test_it_is_tried_once_for_the_same_programs(host: Host) -> None:
    host.private_criu("4.3")
    found = await host.verdict()
    assert found.suspends
    assert found.text == "CRIU 4.3, tried with runc 1.1.5+ds1"
    assert await host.verdict() == found
    assert await host.verdict(again=True) == found
    assert len(host.tried) == 1


async def test_other_programs_are_tried_anew(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    host.private_criu("4.3")
    await host.verdict()
    host.private_criu("4.4")
    await host.verdict()
    host.program("system/runc", "echo runc version 1.2.0")
    await host.verdict()
    here = os.uname()
    other = os.uname_result((here.sysname, here.nodename, "9.9.9", here.version, here.machine))
    monkeypatch.setattr(os, "uname", lambda: other)
    await host.verdict()
    assert len(host.tried) == 4


async def test_a_refusal_is_remembered_until_asked_again(host: Host) -> None:
    host.private_criu("4.3")
    host.failure = SelfTestFailed("a box could not suspend: no vdso")
    found = await host.verdict()
    assert not found.suspends
    assert found.text == (
        "boxes cannot suspend here: CRIU 4.3 failed its trial: a box could not suspend: no vdso"
    )
    assert found.remedy
    host.failure = None
    assert await host.verdict() == found
    assert (await host.verdict(again=True)).suspends
    assert (await host.verdict()).suspends
    assert len(host.tried) == 2


@pytest.mark.parametrize("failure", [Unavailable("no time"), OSError("no disk")])
async def test_what_hindered_the_trial_is_not_remembered(host: Host, failure: Exception) -> None:
    host.private_criu("4.3")
    host.failure = failure
    found = await host.verdict()
    assert not found.suspends
    assert f"the trial of CRIU could not run: {failure}" in found.text
    assert not (host.state / KEPT).exists()
    host.failure = None
    assert (await host.verdict()).suspends


async def test_without_runc(host: Host) -> None:
    host.private_criu("4.3")
    (host.top / "system/runc").unlink()
    found = await host.verdict()
    assert "runc is not installed on this host" in found.text
    assert host.tried == []


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"with": 1'])
async def test_a_damaged_memory_is_none(host: Host, text: str) -> None:
    host.private_criu("4.3")
    (host.state / KEPT).write_text(text)
    assert (await host.verdict()).suspends
    assert len(host.tried) == 1
    assert json.loads((host.state / KEPT).read_text())["refusal"] == ""


async def test_two_at_once_try_once(host: Host) -> None:
    host.private_criu("4.3")
    first, second = await asyncio.gather(host.verdict(), host.verdict())
    assert first == second
    assert len(host.tried) == 1


async def test_a_trial_without_end_is_not_waited_for(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    host.private_criu("4.3")
    monkeypatch.setattr(criu, "WAIT_TIMEOUT", 0.05)
    never = asyncio.Event()
    begun = asyncio.Event()

    async def hang(program: Path, work: Path) -> None:
        del program, work
        begun.set()
        await never.wait()

    stuck = asyncio.create_task(verdict(host.state, tools=replace(host.tools, trial=hang)))
    await begun.wait()
    found = await host.verdict()
    assert "another self-test is running and does not end" in found.text
    stuck.cancel()
    await asyncio.gather(stuck, return_exceptions=True)
    assert (await host.verdict()).suspends


async def test_who_is_not_root_is_told(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    host.private_criu("4.3")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    found = await host.verdict()
    assert not found.suspends
    assert "root" in found.text
    assert host.tried == []
