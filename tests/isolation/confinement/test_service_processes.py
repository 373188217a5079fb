"""Every process of a running service has the rights that SECURITY.md states."""

from __future__ import annotations

import os
import re
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from boxd.backends.host.id_ranges import COUNT
from boxd.sandbox.capabilities import DROPPED
from boxd.sandbox.id_claims import FIRST
from boxd.sandbox.users import BLOCKS, FIRST_MOUNT, FRONT, OBJECT_SERVER, POSTGRES, SIZE
from tests.harness.service.user import User

if TYPE_CHECKING:
    from tests.harness.service.daemon import Daemon

ROOT = Path(__file__).parents[3]
NUMBERS = {"dac_read_search": 2, "sys_admin": 21, "sys_chroot": 18, "sys_ptrace": 19}
"""Numbers of <linux/capability.h>."""
VISIBLE = {
    *("bin", "dev", "etc", "lib", "lib32", "lib64", "libx32", "proc", "sbin", "tmp", "usr"),
    ROOT.parts[1],
}
"""What may be in the root directory of a sandbox, besides the path of the state directory."""
PATTERNS = {
    "boxd": r"python3? .*-m boxd (?!.*sandbox)",
    "lxcfs": r"lxcfs -f ",
    "postgres": r"postgres",
    "objectserver": r"-m objectserver ",
    "mount": r"-m box_guest.mount ",
}


@dataclass(frozen=True)
class Rights:
    """What the kernel says of a process."""

    pid: int
    user: int
    effective: int
    bounding: int
    no_new_privs: bool
    filtered: bool

    @classmethod
    def of(cls, pid: int) -> Rights:
        """Read the rights of a process."""
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        status = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
        assert len(set(status["Uid"].split())) == 1
        return cls(
            pid,
            int(status["Uid"].split()[0]),
            int(status["CapEff"], 16) | int(status["CapPrm"], 16) | int(status["CapAmb"], 16),
            int(status["CapBnd"], 16),
            status["NoNewPrivs"] == "1",
            status["Seccomp"] == "2",
        )


def family(daemon: Daemon) -> dict[str, list[int]]:
    """Return the processes of the service by kind; `box` are those of boxes.

    A process belongs to the service if it, or a parent of it, names the state directory or the
    installation. Every one has a kind.
    """
    assert daemon.process is not None
    kinds: dict[str, list[int]] = {"box": []}
    host = os.readlink("/proc/self/ns/pid")
    for pid in (int(name) for name in os.listdir("/proc") if name.isdigit()):
        place = Path(f"/proc/{pid}")
        try:
            words = (place / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            belongs = pid == daemon.process.pid or any(
                str(daemon.state) in text or f"boxd-{daemon.instance}" in text
                for text in (words, os.readlink(place / "cwd"), (place / "cgroup").read_text())
            )
            if not belongs and "postgres" in words:
                belongs = str(daemon.state) in os.readlink(place / "cwd")
            if not belongs or not words:
                continue
            if os.readlink(place / "ns/pid") != host:
                kinds["box"].append(pid)
                continue
        except OSError:
            continue  # it has ended
        (kind,) = [name for name, text in PATTERNS.items() if re.search(text, words)] or [words]
        if kind == "boxd" and pid != daemon.process.pid:
            kind = (place / "comm").read_text().strip().removeprefix("boxd-")
        kinds.setdefault(kind, []).append(pid)
    return kinds


def table() -> dict[str, list[str]]:
    """Return the rows of the table by process."""
    text = (ROOT / "SECURITY.md").read_text().partition("## Processes of the service")[2]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in text.partition("\n## ")[0].splitlines()
        if line.startswith("|")
    ][2:]
    names = (re.match(r"`?([a-z]+)", row[0]) for row in rows)
    return {name[1]: row for name, row in zip(names, rows, strict=True) if name}


@pytest.fixture(scope="module")
def kinds(daemon: Daemon, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[int]]:
    """The processes while two owners have a box with a drive each."""
    for name in ("alice", "bob"):
        user = User(daemon, tmp_path_factory.mktemp(name))
        user.ssh("web", "box-guest workspace mount && touch /wrk/file")
    return family(daemon)


def test_the_table_has_every_process(kinds: dict[str, list[int]]) -> None:
    rows = set(table())
    assert {"processes" if kind == "box" else kind for kind in kinds} == rows - {"renderer"}
    assert len(kinds["mount"]) == 2
    assert len(kinds["lxcfs"]) == 2
    assert len(kinds["postgres"]) > 1


@pytest.mark.parametrize("kind", ["boxd", "helper"])
def test_a_process_of_root(kinds: dict[str, list[int]], kind: str) -> None:
    (rights,) = map(Rights.of, kinds[kind])
    assert rights.user == 0
    assert re.match(rf"all but {len(DROPPED)}\b", table()[kind][2])
    for number in DROPPED.values():
        assert not (rights.effective | rights.bounding) >> number & 1


def test_lxcfs(kinds: dict[str, list[int]]) -> None:
    row = table()["lxcfs"]
    expected = sum(1 << NUMBERS[name] for name in re.findall("`([a-z_]+)`", row[2]))
    for rights in map(Rights.of, kinds["lxcfs"]):
        assert rights.user == 0
        assert rights.no_new_privs
        assert rights.effective & ~expected == rights.bounding & ~expected == 0


@pytest.mark.parametrize("kind", ["postgres", "objectserver", "mount"])
def test_a_sandboxed_process(kinds: dict[str, list[int]], daemon: Daemon, kind: str) -> None:
    row = table()[kind]
    assert row[2:4] == ["sandboxed", f"`{kind}`"]
    for rights in map(Rights.of, kinds[kind]):
        assert rights.user != 0
        assert (rights.effective, rights.bounding) == (0, 0)
        assert rights.no_new_privs
        assert rights.filtered
        visible = set(os.listdir(f"/proc/{rights.pid}/root"))
        assert visible <= VISIBLE | {daemon.state.parts[1], "run"}
        assert not (Path(f"/proc/{rights.pid}/root") / str(daemon.state / "keys")[1:]).exists()


def test_the_process_that_strangers_reach(kinds: dict[str, list[int]], daemon: Daemon) -> None:
    assert table()["front"][2:4] == ["sandboxed", "`front`"]
    (rights,) = map(Rights.of, kinds["front"])
    assert rights.user % SIZE == FRONT
    assert (rights.effective, rights.bounding) == (0, 0)
    assert rights.no_new_privs
    assert rights.filtered
    root = Path(f"/proc/{rights.pid}/root")
    # The image of the tests is below /var.
    assert set(os.listdir(root)) <= VISIBLE | {daemon.state.parts[1], "run", "var"}
    seen = set(os.listdir(root / str(daemon.state)[1:]))
    assert seen == {"keys", "grants", "images", "postgres"}
    postgres = root / str(daemon.state / "postgres")[1:]
    assert os.listdir(postgres) == ["socket"]


@pytest.mark.parametrize("kind", ["postgres", "objectserver", "mount", "box"])
def test_what_the_helper_starts_ignores_no_signal_because_of_it(
    kinds: dict[str, list[int]], kind: str
) -> None:
    for pid in kinds[kind]:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        (ignored,) = (int(line.split()[1], 16) for line in lines if line.startswith("SigIgn:"))
        assert not ignored & 1 << signal.SIGHUP - 1


def test_postgres_has_no_network(kinds: dict[str, list[int]]) -> None:
    own = os.readlink("/proc/self/ns/net")
    (network,) = {os.readlink(f"/proc/{pid}/ns/net") for pid in kinds["postgres"]}
    assert network != own
    for pid in kinds["postgres"]:
        links = Path(f"/proc/{pid}/net/dev").read_text().splitlines()[2:]
        assert [link.split(":")[0].strip() for link in links] == ["lo"]


def test_no_two_servers_share_a_user(kinds: dict[str, list[int]]) -> None:
    servers = [Rights.of(pid).user for kind in ("objectserver", "mount") for pid in kinds[kind]]
    (database,) = {Rights.of(pid).user for pid in kinds["postgres"]}
    servers.append(database)
    assert len(set(servers)) == len(servers) == 4
    assert all(FIRST - BLOCKS * SIZE <= user < FIRST for user in servers)
    objects, *mounts, last = [user % SIZE for user in servers]
    assert (objects, last) == (OBJECT_SERVER, POSTGRES)
    assert min(mounts) >= FIRST_MOUNT


def test_the_front_has_no_directory_open(kinds: dict[str, list[int]]) -> None:
    """`..` of a directory of the host's mounts would lead to all files of the host."""
    (pid,) = kinds["front"]
    descriptors = [*Path(f"/proc/{pid}/fd").iterdir()]
    assert descriptors
    assert [os.readlink(one) for one in descriptors if one.is_dir()] == []


def test_a_mount_reaches_no_file_of_another(kinds: dict[str, list[int]]) -> None:
    homes = []
    for pid in kinds["mount"]:
        words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
        homes.append(words[words.index("--journal") + 1])
    for pid, other in zip(kinds["mount"], reversed(homes), strict=True):
        assert not Path(f"/proc/{pid}/root{other}").exists()


def test_processes_of_boxes(kinds: dict[str, list[int]]) -> None:
    assert kinds["box"]
    users = {Rights.of(pid).user for pid in kinds["box"]}
    assert all(user >= FIRST for user in users)
    assert len({(user - FIRST) // COUNT for user in users}) == 2
