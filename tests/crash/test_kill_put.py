"""CR-2: the daemon is killed while it receives a PUT of 64 MiB: absent, old or complete."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.crash.putting import PATH, PIECE, SIZE, piece
from tests.harness.servers.backends import wait_for_the_dead
from wrkfs import paths
from wrkfs.errors import NotFound
from wrkfs.fs import Filesystem
from wrkfs.types import ROOT_INO

if TYPE_CHECKING:
    from tests.plugins.figures import Figures
    from wrkfs.config import VolumeConfig

LONGEST = 0.5
"""Seconds from the beginning of a PUT to the kill."""


@pytest.mark.promise("D1")
@pytest.mark.promise("V4")
@pytest.mark.figure("CR-2")
@pytest.mark.timeout(600)
async def test_a_put_is_all_or_nothing(volume: VolumeConfig, figures: Figures) -> None:
    there = answered = begun = 0
    for number in figures(ci=20, long=2000):
        first = begun + 1
        answered, begun = await asyncio.to_thread(kill_one, volume, first, number)
        fs = await Filesystem.connect(volume)
        try:
            found = await version_of(fs)
            assert found in (there, *range(first, begun + 1)), f"round {number}"
            assert found >= answered, f"round {number}: version {answered} was answered"
            there = found
            assert await names(fs) <= {b"folder", b"big"}, f"round {number}"
        finally:
            await fs.close()


def kill_one(volume: VolumeConfig, version: int, seed: int) -> tuple[int, int]:
    """Puts from `version` on, and kills; the last versions that were answered and begun."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.crash.putting"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{version}\n{volume.to_json()}")
        process.stdin.close()
        assert process.stdout.readline() == f"begins {version}\n"
        moment = random.Random(seed).uniform(0, LONGEST)
        try:
            process.wait(moment)
        except subprocess.TimeoutExpired:
            process.kill()
        lines = [f"begins {version}", *process.stdout.read().splitlines()]
    wait_for_the_dead(volume)
    last = {"answered": 0, "begins": 0}
    for line in lines:
        what, _, which = line.partition(" ")
        last[what] = int(which)
    return last["answered"], last["begins"]


async def version_of(fs: Filesystem) -> int:
    """The version that is there, every byte of it looked at; 0: none."""
    try:
        found = await paths.resolve(fs, PATH)
        if found.attr is None:
            return 0
    except NotFound:
        return 0
    handle = await fs.open(found.attr.ino, os.O_RDONLY)
    try:
        assert handle.attr.size == SIZE
        version = int.from_bytes(await handle.read(0, 8), "big")
        wanted = piece(version)
        for at in range(0, SIZE, PIECE):
            assert await handle.read(at, PIECE) == wanted, f"version {version} differs at {at}"
    finally:
        await handle.close()
    return version


async def names(fs: Filesystem) -> set[bytes]:
    """Every name in the volume: a temporary one would be seen."""
    found = {entry.name: entry.attr for entry in await fs.readdir(ROOT_INO, 0, 100)}
    for attr in list(found.values()):
        if attr.is_dir:
            found.update({e.name: e.attr for e in await fs.readdir(attr.ino, 0, 100)})
    return set(found)
