"""A box that has become another one: what its agent keeps, and what it must not keep."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from box_guest import protocol
from boxd.errors import Unavailable
from boxd.tunnel.channel import ExitStatus
from tests.harness.agents.agent import BOX_ID, LocalBox, local_agent
from tests.harness.wait import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

OTHER = "c1" * 16
CLONES = Path(__file__).parent / "clones.py"


@pytest.fixture
async def quiet_box() -> AsyncIterator[LocalBox]:
    """A box whose agent is not started."""
    async with local_agent() as box:
        yield box


def pid_of(box: LocalBox) -> int:
    """The agent's process."""
    assert box.process is not None
    return box.process.pid


def program(box: LocalBox) -> bytes:
    """Addresses that the kernel drew when the agent's program was started."""
    return Path(f"/proc/{pid_of(box)}/auxv").read_bytes()


def alive(pid: int) -> bool:
    """Whether a process exists and is more than a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def changed_while_frozen(box: LocalBox) -> None:
    """What a fork does to the copy: other files in the run directory while nothing runs."""
    os.kill(pid_of(box), signal.SIGSTOP)
    box.become(OTHER, "copy")
    await box.open()
    os.kill(pid_of(box), signal.SIGCONT)


async def test_a_copy_begins_anew_in_the_same_process(local_box: LocalBox) -> None:
    before = (await local_box.tunnel()).hello
    old_program, pid = program(local_box), pid_of(local_box)
    running = await (await local_box.tunnel()).start("trap '' HUP TERM; echo $$; sleep 600")
    async for _, line in running.output():
        command = int(line)
        break
    await local_box.registry.quiesce(BOX_ID)
    await changed_while_frozen(local_box)
    after = (await local_box.tunnel()).hello
    assert after.boot != before.boot
    assert after.generation == 1
    assert program(local_box) == old_program
    assert (await local_box.run("echo $PPID")).stdout == f"{pid}\n".encode()
    # The command of the old channel ended, whatever it caught, and was collected.
    await until(lambda: not Path(f"/proc/{command}").exists())
    with pytest.raises(Unavailable):
        await running.wait()


async def test_the_command_line_tells_the_new_name(local_box: LocalBox) -> None:
    await local_box.registry.quiesce(BOX_ID)
    await changed_while_frozen(local_box)
    await local_box.tunnel()
    told = await local_box.run(
        f"{sys.executable} -m box_guest.cli --socket {local_box.guest_socket} info"
    )
    assert f"id: {OTHER}\nname: copy\n".encode() in told.stdout


async def test_a_box_that_only_slept_goes_on(local_box: LocalBox) -> None:
    before, old_program = (await local_box.tunnel()).hello, program(local_box)
    await local_box.registry.quiesce(BOX_ID)
    for path in (protocol.AGENT_CONFIG, protocol.HOST_KEY):
        # Written anew, with the same text.
        text = (local_box.run_dir / path).read_bytes()
        (local_box.run_dir / path).unlink()
        (local_box.run_dir / path).write_bytes(text)
    await local_box.open()
    after = (await local_box.tunnel()).hello
    assert (after.boot, after.generation) == (before.boot, before.generation + 1)
    assert program(local_box) == old_program


async def test_without_a_way_to_reseed_the_program_is_executed_anew(quiet_box: LocalBox) -> None:
    unable = "from box_guest.control import randomness; randomness.reseed = lambda: False"
    start = "import sys; from box_guest.__main__ import main; sys.exit(main())"
    places = ("--run-dir", quiet_box.run_dir, "--guest-socket", quiet_box.guest_socket)
    await quiet_box.start((sys.executable, "-c", f"{unable}; {start}", *map(str, places)))
    boot, old_program = (await quiet_box.tunnel()).hello.boot, program(quiet_box)
    await quiet_box.registry.quiesce(BOX_ID)
    await changed_while_frozen(quiet_box)
    hello = (await quiet_box.tunnel()).hello
    assert hello.boot != boot
    assert program(quiet_box) != old_program
    pid = pid_of(quiet_box)
    assert (await quiet_box.run("echo $PPID")).stdout == f"{pid}\n".encode()
    # A second time, from the program that was executed anew.
    await quiet_box.registry.quiesce(OTHER)
    os.kill(pid, signal.SIGSTOP)
    quiet_box.become("d2" * 16, "another")
    await quiet_box.open()
    os.kill(pid, signal.SIGCONT)
    assert (await quiet_box.tunnel()).hello.boot != hello.boot
    assert (await quiet_box.run("exit 5")).status == ExitStatus(5, None)


async def test_files_that_are_half_written(local_box: LocalBox) -> None:
    """The agent waits until they are whole, and stays alive."""
    await local_box.registry.quiesce(BOX_ID)
    config = local_box.run_dir / protocol.AGENT_CONFIG
    whole = config.read_text()
    config.write_text(whole[:-9])
    await local_box.open()
    tunnel = await local_box.tunnel()
    await local_box.registry.quiesce(BOX_ID)
    config.write_text(whole.replace('"web"', '"new"'))
    await local_box.open()
    assert (await local_box.tunnel()).hello.boot != tunnel.hello.boot


@pytest.mark.parametrize(("reseeding", "different"), [(True, True), (False, False)])
async def test_keys_of_copies(reseeding: bool, different: bool) -> None:
    """Copies of an agent that has drawn keys draw different ones once they are reseeded.

    The copies are processes with the same memory and the same number, as a restored box has. That
    they share their keys otherwise shows that nothing else keeps them apart.
    """
    run = await asyncio.create_subprocess_exec(
        *("unshare", "--pid", "--fork", "--kill-child", sys.executable, CLONES),
        "reseeding" if reseeding else "as-they-are",
        stdout=subprocess.PIPE,
    )
    keys = (await run.communicate())[0].decode().split()
    assert run.returncode == 0
    assert len(keys) == 2
    assert (keys[0] != keys[1]) is different
