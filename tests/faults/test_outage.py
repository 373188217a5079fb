"""Outages under real mounts: short ones cost time only, no call hangs, unmounting always works."""

from __future__ import annotations

import errno
import os
import subprocess
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from box_guest.fuse import tuning
from tests.harness.mounts.drive import MountProcess
from tests.harness.servers.detour import database_proxy, through_socket, through_store
from tests.harness.servers.fault_proxy import Fault, StoreProxy, Toxic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.harness.servers.fault_proxy import FaultProxy, Request
    from tests.plugins.figures import Figures
    from wrkfs.config import VolumeConfig

SIZE = 200_000
"""Bytes of a file that needs the object store."""
OUTAGE = 20.0
"""Seconds of each outage that must cost time only, in `make test`; the long run's are of 50."""


class Site:
    """A mount whose ways to database and object store can be broken."""

    def __init__(self, volume: VolumeConfig, directory: Path) -> None:
        self.database = database_proxy(volume, directory)
        self.store = StoreProxy(volume.store.endpoint)
        config = through_store(through_socket(volume, self.database), self.store.endpoint)
        self.mount = MountProcess(config, directory)
        self.path = self.mount.path

    @property
    def proxies(self) -> tuple[FaultProxy, FaultProxy]:
        """Both ways."""
        return (self.database, self.store)

    def close(self) -> None:
        """Ends everything."""
        for proxy in self.proxies:
            proxy.toxic = Toxic()
        self.mount.clean()
        for proxy in self.proxies:
            proxy.close()


@pytest.fixture
def site(volume: VolumeConfig, tmp_path: Path) -> Iterator[Site]:
    """One mount behind proxies."""
    made = Site(volume, tmp_path)
    try:
        yield made
    finally:
        made.close()


class Worker:
    """Works on files of its own until it is stopped; keeps what failed and how long calls took."""

    def __init__(self, path: Path, number: int) -> None:
        self.failures: list[OSError] = []
        self.rounds = 0
        self.slowest = 0.0
        self.last_end = 0.0
        self._path = path / f"worker{number}"
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self) -> None:
        """After the round at hand."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        self._path.mkdir()
        while not self._stop.is_set():
            for step in (self._write, self._read, self._names):
                begun = time.monotonic()
                try:
                    step()
                except OSError as error:
                    self.failures.append(error)
                self.last_end = time.monotonic()
                self.slowest = max(self.slowest, self.last_end - begun)
            self.rounds += 1

    def _write(self) -> None:
        descriptor = os.open(self._path / "f", os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
        try:
            os.write(descriptor, self._data())
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _read(self) -> None:
        assert (self._path / "f").read_bytes() == self._data()

    def _names(self) -> None:
        (self._path / "d").mkdir()
        (self._path / "d").rename(self._path / "e")
        os.listdir(self._path)
        (self._path / "e").rmdir()

    def _data(self) -> bytes:
        return b"%d" % (self.rounds % 10) * SIZE


BREAKS: dict[str, Callable[[Site], None]] = {
    "database gone": lambda site: site.database.down(),
    "database in a black hole": lambda site: _swallow(site.database),
    "store gone": lambda site: site.store.down(),
    "store in a black hole": lambda site: _swallow(site.store),
}


def _swallow(proxy: FaultProxy) -> None:
    proxy.toxic = Toxic(black_hole=True)


def mend(site: Site) -> None:
    """Everything is there again."""
    for proxy in site.proxies:
        if proxy.toxic.black_hole:
            proxy.toxic = Toxic()
        else:
            proxy.down()
            proxy.up()


@pytest.mark.promise("D3")
@pytest.mark.figure("D3")
@pytest.mark.timeout(150)
def test_a_short_outage_of_everything_costs_time_only(site: Site, figures: Figures) -> None:
    """Both stores at once, in each way; the long run also breaks one while the other is well."""
    outages: list[tuple[str, ...]] = [
        ("database gone", "store in a black hole"),
        ("database in a black hole", "store gone"),
    ]
    if figures.long:
        outages += [(name,) for name in BREAKS]
    outage = 50.0 if figures.long else OUTAGE
    for _ in figures(ci=1, long=30):
        workers = [Worker(site.path, number) for number in range(4)]
        for broken in outages:
            _wait_for_rounds(workers)
            for name in broken:
                BREAKS[name](site)
            # The length of the outage is what this test is about.
            time.sleep(outage)
            mend(site)
            back = time.monotonic()
            _wait_for_rounds(workers)
            print(f"{broken}: away {outage:g} s, round done {time.monotonic() - back:.1f} s after")
        for worker in workers:
            worker.stop()
        assert [worker.failures for worker in workers] == [[]] * len(workers)
        _clear(site.path)


def _wait_for_rounds(workers: list[Worker], deadline: float = 60.0) -> None:
    """Until each worker has begun and ended another round."""
    goals = [worker.rounds + 2 for worker in workers]
    end = time.monotonic() + deadline
    while any(worker.rounds < goal for worker, goal in zip(workers, goals, strict=True)):
        failed = [worker.failures for worker in workers if worker.failures]
        assert not failed, failed
        assert time.monotonic() < end, "the workers do not get on"
        time.sleep(0.01)


def _clear(path: Path) -> None:
    subprocess.run(["rm", "-rf", *path.iterdir()], check=True)


@pytest.mark.promise("D3")
@pytest.mark.parametrize("broken", ["database in a black hole", "store gone"])
def test_a_mount_can_be_stopped_in_any_outage(site: Site, broken: str) -> None:
    (site.path / "before").write_bytes(b"x")
    held = os.open(site.path / "held", os.O_CREAT | os.O_WRONLY)
    BREAKS[broken](site)
    os.write(held, b"y" * SIZE if "store" in broken else b"y")
    # Exit status 1 tells that bytes could not be committed.
    assert site.mount.stop() in (0, 1)
    assert tuning.device(site.path) is None
    with pytest.raises(OSError, match="not connected"):
        os.write(held, b"z")
    with suppress(OSError):
        os.close(held)


@pytest.mark.promise("D3")
def test_umount_works_while_the_database_is_gone(site: Site) -> None:
    (site.path / "before").write_bytes(b"x")
    site.database.down()
    subprocess.run(["umount", "--lazy", "--no-canonicalize", site.path], check=True, timeout=30)
    assert tuning.device(site.path) is None
    site.database.up()
    assert site.mount.wait() == 0


@pytest.mark.promise("D4")
@pytest.mark.figure("D4")
@pytest.mark.timeout(400)
def test_a_long_outage_is_told_by_every_descriptor(site: Site, figures: Figures) -> None:
    """Longer than a minute in the long run only; in CI the store is full instead: an error too."""
    for number in figures(ci=3, long=10):
        name = site.path / f"f{number}"
        descriptors = [os.open(name, os.O_CREAT | os.O_RDWR) for _ in range(4)]
        reader = os.open(name, os.O_RDONLY)
        if figures.long:
            site.store.down()
        else:
            site.store.rule = _full
        os.write(descriptors[0], b"lost" * (SIZE // 4))
        begun = time.monotonic()
        wanted = errno.EIO if figures.long else errno.ENOSPC
        assert _error(os.fsync, descriptors[0]) == wanted
        assert time.monotonic() - begun < 90, "no call hangs"
        if figures.long:
            site.store.up()
        else:
            site.store.rule = _nothing
        os.pwrite(descriptors[0], b"kept" * (SIZE // 4), SIZE)
        assert _error(os.fsync, descriptors[0]) == 0, "told once"
        late = os.open(name, os.O_RDWR)
        assert _error(os.fsync, late) == 0, "it was not open at that time"
        os.close(late)
        assert _error(os.fsync, descriptors[1]) == wanted
        assert _error(os.close, descriptors[2]) == wanted
        assert _error(os.fsync, reader) == wanted
        assert _error(os.close, descriptors[3]) == wanted
        for descriptor in (*descriptors[:2], reader):
            assert _error(os.close, descriptor) == 0
        assert name.read_bytes() == bytes(SIZE) + b"kept" * (SIZE // 4)
        name.unlink()


def _full(request: Request) -> Fault | None:
    return Fault(507) if request.method == "PUT" else None


def _nothing(_request: Request) -> None:
    return None


def _error(call: Callable[[int], None], descriptor: int) -> int:
    """The errno of a call; 0 when it succeeds."""
    try:
        call(descriptor)
    except OSError as error:
        return error.errno or -1
    return 0
