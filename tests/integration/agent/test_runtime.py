"""The guest runtime in a root that holds nothing but busybox: no Python, no C library."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from box_guest import protocol
from boxd.images import runtime
from boxd.model.presence import Presence
from boxd.tunnel.channel import Terminal
from tests.harness.agents.agent import BOX_ID, local_agent
from tests.harness.wait import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.harness.agents.agent import LocalBox

BUSYBOX = Path("/bin/busybox")
TOOLS = ("sh", "cat", "env", "grep", "head", "ls", "mount", "ps", "sleep", "stty", "test")
DEVICES = {"null": (1, 3), "zero": (1, 5), "urandom": (1, 9), "ptmx": (5, 2)}
MAX_IDLE_KIB = 40 * 1024


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A runtime made for these tests."""
    return runtime.build(tmp_path_factory.mktemp("runtimes"), lambda _: None)


@pytest.fixture
async def bare_box(built: Path) -> AsyncIterator[LocalBox]:
    """The agent as process 1 of a root with nothing but busybox, in its own namespaces."""
    if not BUSYBOX.exists():
        pytest.fail("busybox-static is not installed; run scripts/setup")
    async with local_agent() as box:
        root = box.root / "root"
        _make_root(root)
        # The box's run directory is the root's, so that the socket can be reached from both.
        shutil.rmtree(root / "run/box")
        box.run_dir.rename(root / "run/box")
        box.run_dir.symlink_to(root / "run/box")
        await box.open()
        script = (
            f"mount --bind -o ro {built} {root}/.box && mount -t proc proc {root}/proc"
            f" && mount -t devpts -o newinstance,ptmxmode=0666 devpts {root}/dev/pts"
            f' && exec chroot {root} "$@"'
        )
        box.process = await asyncio.create_subprocess_exec(
            *("unshare", "-mpf", "--kill-child", "sh", "-c", script, "sh"),
            *protocol.AGENT_COMMAND,
            stdin=asyncio.subprocess.DEVNULL,
            env={"PATH": os.environ["PATH"]},
        )
        try:
            await box.tunnel()
            yield box
        finally:
            # unshare itself takes no notice of SIGTERM; with it dies the whole namespace.
            box.process.send_signal(signal.SIGKILL)
            await box.process.wait()


def _make_root(root: Path) -> None:
    for name in ("bin", "etc", "run/box", "root", "tmp", "dev/pts", "proc", ".box"):
        (root / name).mkdir(parents=True)
    (root / "usr/local/bin").mkdir(parents=True)
    shutil.copy(BUSYBOX, root / "bin/busybox")
    for tool in TOOLS:
        (root / "bin" / tool).symlink_to("busybox")
    (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    for name, numbers in DEVICES.items():
        os.mknod(root / "dev" / name, 0o20666, os.makedev(*numbers))


async def test_agent_is_the_init_of_a_bare_root(bare_box: LocalBox) -> None:
    done = await bare_box.run("cat /proc/1/comm; ls /lib /usr/bin 2>/dev/null; echo $0")
    assert done.stdout == b"box-guest\nsh\n"
    # The loader's path is no environment variable: nothing of it reaches the commands.
    env = (await bare_box.run("env")).stdout.decode()
    assert ".box/lib" not in env
    assert "LD_" not in env


async def test_command_line_needs_nothing_of_the_image(bare_box: LocalBox) -> None:
    for command in ("/.box/bin/box-guest", "box-guest", "/usr/local/bin/box-guest"):
        done = await bare_box.run(f"cd /tmp && {command} info")
        assert (done.status.code, done.stderr) == (0, b"")
        assert b"tunnel: up\n" in done.stdout
    assert (await bare_box.run("box-guest workspace mount")).stdout.startswith(b"path: /wrk\n")
    assert (await bare_box.run("box-guest nonsense")).status.code == 2


async def test_files_of_the_box_do_not_become_modules(bare_box: LocalBox) -> None:
    await bare_box.run("echo 'raise SystemExit(99)' > /tmp/json.py; cp /tmp/json.py /json.py")
    done = await bare_box.run("cd /tmp && PYTHONPATH=/tmp box-guest info")
    assert done.status.code == 0


async def test_orphans_are_reaped(bare_box: LocalBox) -> None:
    done = await bare_box.run("(sleep 0.1 & echo $!) ; (sleep 0 & echo $!)")
    first, second = done.stdout.split()
    gone = f"test ! -e /proc/{int(first)} && test ! -e /proc/{int(second)}"
    async with asyncio.timeout(10):
        while (await bare_box.run(gone)).status.code != 0:
            assert not (await bare_box.tunnel()).closed


async def test_idle_memory(bare_box: LocalBox) -> None:
    # Read before any command runs in the box, from its status as the host sees it.
    assert bare_box.process is not None
    children = Path(f"/proc/{bare_box.process.pid}/task/{bare_box.process.pid}/children")
    status = Path(f"/proc/{children.read_text().split()[0]}/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("VmRSS"))
    assert int(line.split()[1]) <= MAX_IDLE_KIB


async def test_shells_that_nobody_is_attached_to_are_told(bare_box: LocalBox) -> None:
    await until(lambda: bare_box.shells == [0])
    # What tmux does: a server without a terminal that holds a terminal for each of its shells.
    server = "import os, pty; os.setsid() if os.fork() == 0 else os._exit(0); pty.spawn(['sh'])"
    python = " ".join(protocol.AGENT_COMMAND[:-2])
    attached = await (await bare_box.tunnel()).start(None, terminal=Terminal("xterm", (80, 24)))
    assert (await bare_box.run(f'{python} -c "{server}" >/dev/null 2>&1')).status.code == 0
    await until(lambda: bare_box.shells == [0, 1])
    await attached.end()
    # A new daemon is told anew.
    await bare_box.open()
    await until(lambda: bare_box.shells == [0, 1, 1])
    await bare_box.run("ps -o pid,comm | grep ' sh$' | while read pid rest; do kill -9 $pid; done")
    await until(lambda: bare_box.shells == [0, 1, 1, 0])
    assert await bare_box.registry.quiesce(BOX_ID) == Presence()


async def test_a_copied_box_keeps_its_processes_under_a_new_agent(bare_box: LocalBox) -> None:
    boot = (await bare_box.tunnel()).hello.boot
    done = await bare_box.run("(sleep 600 >/dev/null 2>&1 & echo $!)")
    orphan = int(done.stdout)
    parent = f"grep PPid /proc/{orphan}/status"
    assert (await bare_box.run(parent)).stdout == b"PPid:\t1\n"
    arguments = (await bare_box.run("cat /proc/1/cmdline")).stdout
    await bare_box.registry.quiesce(BOX_ID)
    bare_box.become("c1" * 16, "copy")
    await bare_box.open()
    assert (await bare_box.tunnel()).hello.boot != boot
    assert (await bare_box.run("cat /proc/1/cmdline; cat /proc/1/comm")).stdout == (
        arguments + b"box-guest\n"
    )
    assert (await bare_box.run(parent)).stdout == b"PPid:\t1\n"
    assert b"name: copy\n" in (await bare_box.run("box-guest info")).stdout
    await bare_box.run(f"kill -9 {orphan}")
    async with asyncio.timeout(10):
        while (await bare_box.run(f"test ! -e /proc/{orphan}")).status.code != 0:
            assert not (await bare_box.tunnel()).closed


async def test_terminal_and_transfer(bare_box: LocalBox) -> None:
    done = await bare_box.run("stty size", terminal=Terminal("xterm", (100, 30)))
    assert done.stdout == b"30 100\r\n"
    connection = (await bare_box.tunnel()).connection
    async with (
        await connection.start_sftp_client() as sftp,
        await sftp.open("hello", "wb") as file,
    ):
        await file.write(b"sent")
    assert (await bare_box.run("cat /root/hello")).stdout == b"sent"


def test_generators_can_be_seeded_anew(built: Path) -> None:
    place = str(protocol.RUNTIME_DIR)
    python = [part.replace(place, str(built), 1) for part in protocol.AGENT_COMMAND[:-2]]
    program = (
        "from box_guest.control.randomness import reseed; raise SystemExit(0 if reseed() else 7)"
    )
    assert subprocess.run([*python, "-c", program], check=False).returncode == 0


def test_build_is_idempotent_and_leaves_no_rest(built: Path) -> None:
    again = runtime.build(built.parent, lambda text: pytest.fail(f"built again: {text}"))
    assert again == built
    assert [path.name for path in built.parent.iterdir()] == [built.name]


def test_everything_is_compiled_and_readable(built: Path) -> None:
    for source in (built / "lib").rglob("*.py"):
        compiled = source.parent / "__pycache__" / f"{source.stem}.cpython-311.pyc"
        # Flags 0b01: named by a hash that is never checked, so that the file is never rewritten.
        assert compiled.read_bytes()[4:8] == b"\x01\0\0\0", compiled
    for path in built.rglob("*"):
        assert path.stat().st_mode & 0o004, path


def test_every_library_comes_from_the_runtime(built: Path) -> None:
    loader = built / "lib" / runtime.LOADER
    for path in [built / "bin/python3", *built.rglob("*.so")]:
        listing = subprocess.run(
            [loader, "--library-path", built / "lib", "--list", path],
            capture_output=True,
            text=True,
            check=True,
        )
        for line in listing.stdout.splitlines():
            if "=>" in line:
                assert f"=> {built}/lib/" in line, (path, line)
