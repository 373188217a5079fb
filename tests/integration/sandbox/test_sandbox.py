"""What a process in a sandbox is, sees and may call."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from boxd.sandbox.calls import LISTS
from boxd.sandbox.sandbox import Sandbox
from tests.harness.mounts.drive import until

if TYPE_CHECKING:
    from collections.abc import Sequence

USER, GROUP = 990_020, 990_021
TRIALS = {
    "user namespace": "check(libc.unshare(0x10000000))",
    "mount namespace": "check(libc.unshare(0x20000))",
    "clone of a namespace": "check(libc.syscall(56, 0x10000000 | 17, 0, 0, 0, 0))",
    "mount": "check(libc.mount(b'x', b'/tmp', b'tmpfs', 0, None))",
    "umount": "check(libc.umount2(b'/tmp', 2))",
    "ptrace": "check(libc.ptrace(16, 1, 0, 0))",
    "memory of a process": "check(libc.process_vm_readv(1, None, 0, None, 0, 0))",
    "keys": "check(libc.syscall(248, b'user', b'x', b'y', 1, -3))",
    "bpf": "check(libc.syscall(321, 0, None, 0))",
    "io_uring": "check(libc.syscall(425, 1, None))",
    "userfaultfd": "check(libc.syscall(323, 0))",
    "perf": "check(libc.syscall(298, None, 0, -1, -1, 0))",
    "open by handle": "check(libc.syscall(304, -100, None, 0))",
    "chroot": "check(libc.chroot(b'/tmp'))",
    "host name": "check(libc.sethostname(b'x', 1))",
    "clock": "check(libc.clock_settime(0, ctypes.byref((ctypes.c_long * 2)(0, 0))))",
    "modules": "check(libc.syscall(313, 0, b'', 0))",
    "raw socket": "socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)",
    "packet socket": "socket.socket(socket.AF_PACKET, socket.SOCK_RAW)",
    "kernel's crypto": "socket.socket(socket.AF_ALG, socket.SOCK_SEQPACKET)",
    "packet filter": "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 12)",
    "kernel's events": "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 15)",
    "vsock": "socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM)",
    "root again": "os.setuid(0)",
    "another group": "os.setgroups([0])",
    "a file of the system": "open('/usr/x', 'w')",
    "the root directory": "open('/x', 'w')",
    "a setting of the kernel": "open('/proc/sys/kernel/hostname', 'w')",
    "memory of process 1": "open('/proc/1/mem')",
    "signal to process 1": "os.kill(1, 0)",
}
SCRIPT = """
import ctypes, os, socket
libc = ctypes.CDLL(None, use_errno=True)
def check(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), "refused")
try:
    {}
except OSError as error:
    print("refused", error.errno)
else:
    print("allowed")
"""


def run(sandbox: Sandbox, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run a command in a sandbox."""
    with sandbox.command(command) as (entering, document):
        return subprocess.run(
            entering,
            pass_fds=(document,),
            env={"PATH": "/usr/bin:/bin"},
            capture_output=True,
            text=True,
            umask=0o077,
            timeout=60,
            check=False,
        )


def python(sandbox: Sandbox, code: str) -> str:
    """Run Python code in a sandbox; return its output.

    The list of the front lets no program be executed, so its process enters the sandbox itself.
    """
    command = [sys.executable, "-I", "-c", code]
    if sandbox.calls == "front":
        code = f"from boxd.sandbox import enter\nenter.enter({sandbox.document()!r})\n{code}"
        done = subprocess.run(
            [*command[:3], code], capture_output=True, text=True, timeout=60, check=False
        )
    else:
        done = run(sandbox, command)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_its_rights() -> None:
    text = python(Sandbox(USER, "mount", group=GROUP), "print(open('/proc/self/status').read())")
    status = dict(line.split(":\t", 1) for line in text.splitlines() if ":\t" in line)
    assert status["Uid"].split() == [str(USER)] * 4
    assert status["Gid"].split() == [str(GROUP)] * 4
    assert status["Groups"].strip() == ""
    for kind in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(status[kind], 16) == 0, kind
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")


@pytest.mark.parametrize("trial", TRIALS)
@pytest.mark.parametrize("calls", LISTS)
def test_what_it_may_not_do(calls: str, trial: str) -> None:
    assert python(Sandbox(USER, calls), SCRIPT.format(TRIALS[trial])).startswith("refused")


def test_it_sees_only_its_paths(tmp_path: Path) -> None:
    shown, own, secret = (tmp_path / name for name in ("shown", "own", "secret"))
    for directory in (shown, own, secret):
        directory.mkdir(mode=0o755)
        (directory / "file").write_text("x")
    os.chown(own, USER, USER)
    code = (
        "import json, os\n"
        f"own, shown, secret = {str(own)!r}, {str(shown)!r}, {str(secret)!r}\n"
        "open(own + '/new', 'w').close()\n"
        "try:\n    open(shown + '/new', 'w')\nexcept OSError as error:\n    refused = error.errno\n"
        "names = sorted(os.listdir('/')), sorted(os.listdir('/etc'))\n"
        "print(json.dumps([os.path.exists(secret), os.path.exists(shown), refused, names]))\n"
    )
    text = python(Sandbox(USER, "mount", (shown, tmp_path / "absent"), (own,)), code)
    exists, visible, refused, (root, etc) = json.loads(text)
    assert (exists, visible) == (False, True)
    assert refused == 30  # EROFS
    assert (own / "new").stat().st_uid == USER
    assert not {"root", "home", "var", "run", "sys", "boot", "srv"} & set(root)
    assert "shadow" not in etc


def test_it_leaves_no_mount_on_the_host(tmp_path: Path) -> None:
    with open("/proc/self/mountinfo", encoding="utf-8") as table:
        before = table.read()
    python(Sandbox(USER, "mount", (tmp_path,)), "pass")
    with open("/proc/self/mountinfo", encoding="utf-8") as table:
        assert table.read() == before


def test_it_keeps_no_mount_of_the_host_busy(tmp_path: Path) -> None:
    """An overlay that any namespace still has cannot be mounted again with the same layer."""
    lower, layer, root = (tmp_path / name for name in ("lower", "layer", "root"))
    for directory in (lower, layer / "upper", layer / "work", root):
        directory.mkdir(parents=True)
    options = f"lowerdir={lower},upperdir={layer}/upper,workdir={layer}/work,index=on"
    mount = ["mount", "-t", "overlay", "-o", options, "overlay", str(root)]
    subprocess.run(mount, check=True)
    try:
        with Sandbox(USER, "mount").command(["/bin/sleep", "60"]) as (entering, document):
            sleeper = subprocess.Popen(entering, pass_fds=(document,))
        try:
            exe = Path(f"/proc/{sleeper.pid}/exe")
            until(lambda: exe.readlink().name in {"sleep", "coreutils"})
            subprocess.run(["umount", str(root)], check=True)
            subprocess.run(mount, check=True)
        finally:
            sleeper.kill()
            sleeper.wait()
    finally:
        subprocess.run(["umount", str(root)], check=True)


def test_a_program_that_does_not_exist() -> None:
    done = run(Sandbox(USER, "mount"), ["/usr/bin/absent"])
    assert done.returncode == 1
    assert "cannot start /usr/bin/absent" in done.stderr


def test_threads_and_programs_work() -> None:
    code = (
        "import subprocess, threading\n"
        "thread = threading.Thread(target=lambda: print('thread', flush=True))\n"
        "thread.start()\nthread.join()\n"
        "subprocess.run(['/bin/echo', 'program'], check=True)\n"
    )
    assert python(Sandbox(USER, "mount"), code).split() == ["thread", "program"]


def test_a_link_to_nothing_is_left_out(tmp_path: Path) -> None:
    """/etc/resolv.conf is one, as long as systemd-resolved does not run."""
    link = tmp_path / "resolv.conf"
    link.symlink_to(tmp_path / "missing")
    done = run(Sandbox(USER, "mount", (link,)), ["true"])
    assert done.returncode == 0, done.stderr
