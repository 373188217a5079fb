"""A machine with nothing but Debian, for the package: a root, processes and a network of its own.

It has no systemd, so `Machine.serve` does what the unit says.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import socket
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from boxd.images import apt_sources, build
from tests.e2e.service import ROOT, Person, wait_for
from tests.harness.boxes.backend import IMAGES_DIR

if TYPE_CHECKING:
    from collections.abc import Iterator

CACHE = ROOT / ".build" / "package"
INPUTS = (
    "packaging",
    "scripts",
    "pyproject.toml",
    "wrkfs",
    "objectserver",
    "guest-agent",
    "daemon",
)
"""What the package is built from."""
SHARED = "/srv/shared"
"""The machine's name of a directory of the test."""
ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LC_ALL": "C.UTF-8"}
ENVIRONMENT |= {"DEBIAN_FRONTEND": "noninteractive"}
SSH_PORT = 2222
STEP_S = 300
START = """
set -eu
lower=$1 place=$2 images=$3
cd "$place"
mkdir -p upper work root state shared
mount -t overlay -o "lowerdir=$lower,upperdir=upper,workdir=work" machine root
cd root
mkdir -p ".$images" srv/shared srv/state
mount --rbind /proc proc
mount --rbind /sys sys
mount --rbind /dev dev
mount --rbind /run run
mount -t tmpfs -o mode=1777 tmp tmp
mount --bind "$place/shared" srv/shared
mount --bind "$place/state" srv/state
mount --bind "$images" ".$images"
pivot_root . mnt
umount -l /mnt
touch /srv/shared/started
sleep infinity
"""
"""Makes the machine and waits. State is not on the overlay: disks of boxes are overlays, too."""


def packages(*versions: str) -> list[Path]:
    """Debian packages of this tree with these versions; those of an unchanged tree are kept."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *INPUTS],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    digest = hashlib.sha256()
    for name in listed.stdout.split(b"\0")[:-1]:
        path = ROOT / name.decode()
        digest.update(name + (path.read_bytes() if path.is_file() else b""))
    place = CACHE / f"tests-{digest.hexdigest()[:16]}"
    if not place.is_dir():
        for old in CACHE.glob("tests-*"):
            shutil.rmtree(old)
    for version in versions:
        if not list(place.glob(f"boxd_{version}_*.deb")):
            command = [str(ROOT / "packaging" / "build"), version, str(place)]
            subprocess.run(command, check=True, timeout=1200)
    return [next(place.glob(f"boxd_{version}_*.deb")) for version in versions]


def debian(package: Path) -> Path:
    """A root with Debian and what the package depends on; it is kept."""
    field = subprocess.run(
        ["dpkg-deb", "--field", str(package), "Depends"], capture_output=True, text=True, check=True
    )
    names = sorted(word.split()[0] for word in field.stdout.split(","))
    digest = hashlib.sha256(" ".join(names).encode()).hexdigest()[:16]
    root = CACHE / f"debian-{digest}"
    if root.is_dir():
        return root
    for old in CACHE.glob("debian-*"):
        shutil.rmtree(old)
    mirrors = apt_sources.find_mirrors(build._host_sources())
    unfinished = CACHE / "debian-unfinished"
    policy = "etc/postgresql-common/createcluster.d"
    command = [
        *("mmdebstrap", "--quiet", "--mode=root", "--variant=minbase", "--format=directory"),
        *('--aptopt=APT::Sandbox::User "root"', '--aptopt=APT::Install-Recommends "false"'),
        "--dpkgopt=force-unsafe-io",
        f"--essential-hook=mkdir -p $1/{policy}",
        f"--essential-hook=echo create_main_cluster=false >$1/{policy}/tests.conf",
        f"--include={','.join(names)}",
        *("bookworm", str(unfinished), *apt_sources.build_sources("bookworm", mirrors)),
    ]
    subprocess.run(command, check=True, timeout=1200)
    return unfinished.rename(root)


class Machine:
    """A running machine. `place` is the test's directory for it."""

    ssh_port = SSH_PORT

    def __init__(self, place: Path, first: int) -> None:
        self.place = place
        self.shared = place / "shared"
        self._first = first
        self._served: subprocess.Popen[bytes] | None = None
        self._inbox = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._inbox.bind(str(self.shared / "notify"))
        self._inbox.settimeout(STEP_S)

    def entering(self, *, root: bool = True) -> list[str]:
        """The start of a command line that runs in the machine, or only in its network."""
        inside = ["--mount", "--pid"] if root else []
        return ["nsenter", f"--target={self._first}", "--net", *inside, "--"]

    def run(self, *words: str, status: int = 0) -> str:
        """Run a command in the machine; return its output, with errors."""
        done = subprocess.run(
            [*self.entering(), *words],
            env=ENVIRONMENT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=STEP_S,
            check=False,
        )
        assert done.returncode == status, (words, done.returncode, done.stdout)
        return done.stdout

    def install(self, package: Path) -> str:
        """Install a package as an administrator does, without a network."""
        shutil.copy(package, self.shared)
        return self.run("apt-get", "install", "--yes", f"{SHARED}/{package.name}")

    def serve(self) -> None:
        """Do what systemd does with the unit: start it, and wait until it is ready."""
        unit = self.run("cat", "/lib/systemd/system/boxd.service")
        start = re.search(r"^ExecStart=(.*)$", unit, re.MULTILINE)
        assert start is not None
        variables = ENVIRONMENT | {
            "NOTIFY_SOCKET": f"{SHARED}/notify",
            "WATCHDOG_USEC": "120000000",
        }
        with (self.shared / "journal").open("ab") as journal:
            self._served = subprocess.Popen(
                [*self.entering(), *start[1].split()],
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=journal,
                stderr=journal,
            )
        self._receive(b"READY=1")

    def stop(self) -> None:
        """Do what `systemctl stop boxd` does with the unit: it ends the first process alone."""
        self.run("pkill", "-TERM", "--oldest", "--full", "boxd serve")
        self._receive(b"STOPPING=1")
        assert self.wait() == 0, self.journal()

    def wait(self) -> int:
        """Wait for the end of the daemon; return its status."""
        assert self._served is not None
        status = self._served.wait(STEP_S)
        self._served = None
        return status

    def _receive(self, wanted: bytes) -> None:
        assert self._served is not None
        self._inbox.settimeout(0.2)
        while True:
            try:
                if self._inbox.recv(4096) == wanted:
                    return
            except TimeoutError:
                assert self._served.poll() is None, self.journal()

    def journal(self) -> str:
        """The output of the service."""
        return (self.shared / "journal").read_text()

    def close(self) -> None:
        """End the daemon, if a test has failed."""
        if self._served is not None:
            self._served.kill()
            self._served.wait()
        self._inbox.close()


class Visitor(Person):
    """A user whose ssh runs in the machine's network."""

    def __init__(self, machine: Machine, home: Path) -> None:
        super().__init__(machine, home)
        self._machine = machine

    def ssh_command(self, user: str, *words: str) -> list[str]:
        """The whole `ssh` command line."""
        return [*self._machine.entering(root=False), *super().ssh_command(user, *words)]


@contextmanager
def running(root: Path) -> Iterator[Machine]:
    """Yield a machine whose root begins as a copy of `root`; all its processes end with it."""
    place = Path(tempfile.mkdtemp(prefix="boxd-machine-"))
    command = [str(ROOT / "tests" / "room"), "--run", "/bin/bash", "-c", START, "machine"]
    room = subprocess.Popen([*command, str(root), str(place), str(IMAGES_DIR)])
    try:
        wait_for((place / "shared" / "started").exists, 60, "the machine has started")
        children = Path(f"/proc/{room.pid}/task/{room.pid}/children").read_text()
        machine = Machine(place, int(children.split()[0]))
        try:
            yield machine
        finally:
            machine.close()
    finally:
        room.kill()  # its first process dies with it, and with that one all others
        room.wait()
        shutil.rmtree(place)
