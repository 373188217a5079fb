"""Fails a test that leaves descriptors or child processes, and a run that leaves host objects.

Per test: open descriptors and child processes of this process, before its first fixture and after
its last. What a fixture of wider scope opened while it was set up outlives the test and is not
counted; nor are the processes of a test that uses such a fixture (it may have started them anew).

Per run: mounts, loop devices, network namespaces, network interfaces, cgroups, nftables tables and
processes of ours. Under xdist the controller looks, before the first worker and after the last;
what the workers found in their tests is handed to it, and what they left in rooms of their own
(`tests/room`), which it cannot see. Of runs beside each other only the last one looks. What other
services on the machine have is none of the run's: see `run_objects`.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import os
import re
import subprocess
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import obstore
import psutil
import pytest
import uvloop
from obstore.store import MemoryStore

from tests.plugins.run_objects import Others, adopt_orphans, descendants

if TYPE_CHECKING:
    from collections.abc import Collection, Generator, Iterable

SETTLE_S = 15.0
"""How long what a test ended may take to be gone."""
POLL_S = 0.05
OUR_WORDS = ("boxd", "box_guest", "wrkfs", "unix_socket_directories=", "-boxd-")
WIDE = pytest.StashKey["Opened"]()
LEFT = pytest.StashKey[list[str]]()
OPEN_BEFORE = pytest.StashKey[Counter[str]]()
SUSPECTS = pytest.StashKey[list[tuple[str, str]]]()
"""Test and kind of descriptor; a leak if one of that kind is still too many at the end."""
HOST_BEFORE = pytest.StashKey["HostObjects"]()
RUNS = pytest.StashKey[int]()
"""Descriptor of a file that every run of tests on the machine has locked."""


@dataclass
class Opened:
    """What fixtures of wider scope opened during the present test."""

    descriptors: Counter[str] = field(default_factory=Counter)
    children: set[int] = field(default_factory=set)
    depth: int = 0
    """How many of them are being set up: one may ask for another."""
    used: bool = False
    """Whether the test uses one of ours, also one that it asked for by name while it ran."""


OF_THE_HOST = frozenset({"loops", "cgroups"})
"""Kinds of which the workers see each other's, also from rooms of their own."""
STAYS: set[int] = set()
"""Child processes that serve the whole run, from the first test that needs them on."""
STAYS_OPEN: set[int] = set()
"""Descriptors of that kind."""
NAMESPACES_MOUNT = "/run/netns"
"""Made once on a machine by the first `ip netns add`, where namespaces stay."""


class Worker(Protocol):
    """What xdist tells of a worker; `workeroutput` is missing when it crashed."""

    config: pytest.Config
    workerinput: dict[str, object]


@dataclass(frozen=True)
class HostObjects:
    """What a run could leave on the machine."""

    mounts: frozenset[str]
    loops: frozenset[str]
    namespaces: frozenset[str]
    interfaces: frozenset[str]
    cgroups: frozenset[str]
    tables: frozenset[str]
    processes: frozenset[str]

    @classmethod
    def now(cls, *, room: bool) -> HostObjects:
        """A look at the room of this process, or at what may be the run's on the machine."""
        mounts = {line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()}
        others = None if room else Others.now()

        def own(items: Iterable[str]) -> frozenset[str]:
            return frozenset(item for item in items if others is None or others.own(item))

        return cls(
            mounts=own(mounts - {NAMESPACES_MOUNT}),
            loops=own(_loops()),
            namespaces=own(_names(Path("/run/netns"))),
            interfaces=own(_names(Path("/sys/class/net"))),
            cgroups=frozenset(
                path
                for path in _cgroups(Path("/sys/fs/cgroup"))
                if others is None or others.own_name(path)
            ),
            tables=own(_nft_tables()),
            processes=frozenset(_our_processes()),
        )

    def left_since(self, before: HostObjects, besides: Collection[str] = frozenset()) -> list[str]:
        """What is there now and was not before, one line each."""
        return [
            f"{kind.name}: {item}"
            for kind in fields(self)
            if kind.name not in besides
            for item in sorted(getattr(self, kind.name) - getattr(before, kind.name))
        ]


def _names(folder: Path) -> list[str]:
    """What is in a directory; nothing when there is none, or none any more."""
    with contextlib.suppress(OSError):
        return os.listdir(folder)
    return []


def _cgroups(root: Path) -> list[str]:
    """Of all boxes; others may remove theirs meanwhile, so no step relies on the one before."""
    tops = [root, *(root / name for name in _names(root))]
    parents = [top / name for top in tops for name in _names(top) if name.startswith("boxd-")]
    return [str(one / name) for one in parents for name in _names(one) if (one / name).is_dir()]


def _loops() -> list[str]:
    """Files that loop devices have."""
    found = []
    for entry in Path("/sys/block").glob("loop*/loop/backing_file"):
        with contextlib.suppress(OSError):  # it was cleared meanwhile
            found.append(entry.read_text().strip())
    return found


def _nft_tables() -> list[str]:
    command = ["nft", "list", "tables"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return []
    return [line for line in done.stdout.splitlines() if "boxd" in line]


def _our_processes() -> list[str]:
    found = []
    for pid in descendants():
        with contextlib.suppress(psutil.NoSuchProcess):  # it has ended meanwhile
            words = " ".join(psutil.Process(pid).cmdline())
            if "pytest" not in words and any(word in words for word in OUR_WORDS):
                found.append(f"{pid} {words[:160]}")
    return found


def _descriptors() -> Counter[str]:
    """How many of each kind: a number that is used again, or a pipe made anew, is no leak."""
    found: Counter[str] = Counter()
    for name in os.listdir("/proc/self/fd"):
        if int(name) in STAYS_OPEN:
            continue
        # The descriptor of this very listing is gone by now.
        with contextlib.suppress(FileNotFoundError):
            found[re.sub(r"\[\d+\]", "", os.readlink(f"/proc/self/fd/{name}"))] += 1
    return found


def _children() -> set[int]:
    """Living ones: what outlives its daemon on purpose is a zombie here once it has ended.

    Asked of the kernel and not of psutil, which reads all processes of the machine for it.
    """
    found: set[int] = set()
    unseen = [os.getpid()]
    while unseen:
        unseen = [child for pid in unseen for child in _children_of(pid)]
        found.update(pid for pid in unseen if not _is_zombie(pid))
    return found - STAYS


def _children_of(pid: int) -> list[int]:
    """Of all its threads; none when it has ended."""
    found = []
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            found += Path(f"/proc/{pid}/task/{thread}/children").read_text().split()
    return [int(child) for child in found]


def _is_zombie(pid: int) -> bool:
    """Whether it has ended; also when nothing of it is there any more."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


@pytest.hookimpl(hookwrapper=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[object], request: pytest.FixtureRequest
) -> Generator[None]:
    """Notes what a fixture that outlives the test opens."""
    opened = request.node.session.stash.setdefault(WIDE, Opened())
    if fixturedef.scope == "function" or opened.depth:
        yield
        return
    opened.depth += 1
    descriptors, children = _descriptors(), _children()
    yield
    opened.depth -= 1
    opened.descriptors += _descriptors() - descriptors
    opened.children |= _children() - children


@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None]:
    """Compares before the first fixture with after the last."""
    wide = item.session.stash[WIDE] = Opened()
    descriptors, children = _descriptors(), _children()
    yield
    kinds, processes = _wait_for_nothing(
        descriptors + wide.descriptors, None if wide.used else children | wide.children
    )
    # The protocol is over; the only way left to fail the run is its exit status.
    item.session.stash[SUSPECTS] += [(item.nodeid, kind) for kind in kinds]
    item.session.stash[LEFT] += [f"{item.nodeid}: process {pid}" for pid in processes]


@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None]:
    """Notes which fixtures the test has used, before that is forgotten."""
    if isinstance(item, pytest.Function):
        item.session.stash[WIDE].used = any(
            one.scope != "function" and one.func.__module__.startswith("tests.")
            for one in item._request._fixture_defs.values()
        )
    yield


def _wait_for_nothing(
    descriptors: Counter[str], children: set[int] | None
) -> tuple[list[str], list[int]]:
    """Kinds of descriptors and processes that are more than before, also after a while."""
    deadline = time.monotonic() + SETTLE_S
    while True:
        gc.collect()
        kinds = sorted(_descriptors() - descriptors)
        processes = [] if children is None else sorted(_children() - children)
        if not (kinds or processes) or time.monotonic() > deadline:
            return kinds, processes
        time.sleep(POLL_S)


def pytest_collection_finish() -> None:
    """What is there before the first test stays: looking through it after each of them took a
    tenth of a second, longer than most tests."""
    gc.collect()
    gc.freeze()


def pytest_sessionstart(session: pytest.Session) -> None:
    """Looks at the machine before anything runs."""
    adopt_orphans()
    # These keep descriptors as long as the process lives, from their first use: that is here.
    obstore.put(MemoryStore(), "warm", b"")
    uvloop.new_event_loop().close()
    session.stash[LEFT] = []
    session.stash[SUSPECTS] = []
    session.stash[OPEN_BEFORE] = _descriptors()
    told = getattr(session.config, "workerinput", None)
    if told is None:
        path = Path(tempfile.gettempdir()) / "boxd-tests.lock"
        session.stash[RUNS] = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(session.stash[RUNS], fcntl.LOCK_SH)
    if told is None or told["network"] != _network():
        session.stash[HOST_BEFORE] = HostObjects.now(room=_is_room(told))


def _is_room(told: dict[str, object] | None) -> bool:
    """Whether nobody else is in the namespaces of this process."""
    return os.getpid() == 1 or (told is not None and told["network"] != _network())


def _is_alone(runs: int) -> bool:
    """Whether no other run of tests is under way."""
    try:
        fcntl.flock(runs, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _network() -> str:
    """Which network this process is in."""
    return os.readlink("/proc/self/ns/net")


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Worker) -> None:
    """Tells a worker which network the controller is in: in another one it has a room."""
    node.workerinput["network"] = _network()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fails the run when a test or the run as a whole left something."""
    problems = session.stash[LEFT]
    gc.collect()
    still = _descriptors() - session.stash[OPEN_BEFORE]
    problems += [
        f"{test}: descriptor {kind}" for test, kind in session.stash[SUSPECTS] if still[kind]
    ]
    output = getattr(session.config, "workeroutput", None)
    before = session.stash.get(HOST_BEFORE, None)
    if before is not None and (output is not None or _is_alone(session.stash[RUNS])):
        besides = frozenset() if output is None else OF_THE_HOST
        room = _is_room(getattr(session.config, "workerinput", None))
        deadline = time.monotonic() + SETTLE_S
        while (
            left := HostObjects.now(room=room).left_since(before, besides)
        ) and time.monotonic() < deadline:
            time.sleep(POLL_S)
        problems += [f"the run left {line}" for line in left]
    if output is not None:
        output["leaks"] = problems
        return
    if problems and session.exitstatus == 0:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Worker, error: object) -> None:
    """Takes over what a worker found."""
    del error
    found = getattr(node, "workeroutput", {}).get("leaks", [])
    session = node.config.pluginmanager.getplugin("session")
    assert isinstance(session, pytest.Session)
    session.stash[LEFT] += found


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Names what was left."""
    session = terminalreporter._session
    for line in session.stash.get(LEFT, []) if session else []:
        terminalreporter.write_line(f"LEAK {line}", red=True)
