"""Tests with a real box whether CRIU can suspend and resume boxes on this host.

`criu check` is not enough. *Measured*: CRIU 4.1 passes it but crashes in the dump, and after a
resume by 4.2, file watches never report events again. So the test makes a tiny box as the backend
does, with a bundle, root overlay, cgroup and user namespace. The box contains this host's
interpreter. The test suspends the box as the backend does (pause, dump, kill) and resumes it. The
memory must then have the old content, the counter must continue, and the watches must report
events.
"""

from __future__ import annotations

import asyncio
import json
import resource
import shutil
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from boxd.backends.checkpoint import criu_config, criu_probe, dump_restore
from boxd.backends.checkpoint.dump_restore import RestoreFailed, RestoreRefused
from boxd.backends.checkpoint.restore_gate import Steps
from boxd.backends.disks import disk
from boxd.backends.host import cgroups, id_maps, mounts, processes, trees
from boxd.backends.host.id_ranges import IdRanges
from boxd.backends.host.names import HostNames
from boxd.backends.host.run import last_words, run, run_silent
from boxd.backends.interface import BoxPlan
from boxd.backends.oci import bundle, masks, mount_points, mount_table
from boxd.config import Config
from boxd.errors import BoxdError, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable

TIMEOUT = 60.0
"""Seconds for the whole test; *measured*: about 2 on 2 cores."""
STEP_TIMEOUT = 30.0
WAIT_TIMEOUT = 10.0
"""Seconds within which a live box must make progress."""
BOX = "self-test"
LIBRARIES = ("bin", "lib", "lib32", "lib64", "sbin")
"""Directories outside /usr that programs need on this host, unless they are links into /usr."""
_NEWS = "news"


class SelfTestFailed(BoxdError):
    """CRIU failed to restore the box. Other errors say nothing about CRIU."""


async def try_out(criu: Path, work: Path) -> None:
    """Suspend and resume a test box with the CRIU at `criu`; its files are below `work`.

    Nothing remains when this returns, not even parts of an interrupted earlier test. Two concurrent
    tests must not share `work`. Raises SelfTestFailed if CRIU fails, and Unavailable or other
    errors if the test could not run.
    """
    test = _SelfTest(criu, work)
    await test.clear()
    try:
        async with asyncio.timeout(TIMEOUT):
            await test.prepare()
            before = await test.start()
            before = await test.suspend(before)
            await test.resume(before)
    except TimeoutError:
        raise Unavailable(f"the test did not end within {TIMEOUT:.0f} s") from None
    finally:
        await test.clear()


class _SelfTest:
    """One box and its files. The steps are called in order."""

    def __init__(self, criu: Path, work: Path) -> None:
        self._criu = criu
        self._work = work
        # Names derived from the test's directory, so they never collide with those of boxes.
        self._names = HostNames(Config(state_dir=work).instance, work)
        self._paths = self._names.paths(BOX)
        self._cgroup = self._names.cgroup(BOX)
        self._layout = cgroups.detect()
        self._disk = disk.PlainDisk(work / "snapshots")
        self._drive = self._paths.mounts / "drive"
        self._images = work / "images"
        self._ranges = IdRanges(self._names)
        self._by: id_maps.IdMap | None = None

    async def prepare(self) -> None:
        """Create files, root, network namespace and bundle."""
        image, paths = self._work / "image", self._paths
        for directory in (image, self._images, paths.bundle):
            directory.mkdir(parents=True, mode=0o755)
        # Root of the box is an unprivileged user of the host, which must reach these.
        self._names.mounts.parent.mkdir(mode=0o711, exist_ok=True)
        # /run is often mounted noexec, and so would be the box's mounts of it. Real boxes have
        # mounts of the state directory here.
        paths.mounts.mkdir(mode=0o755, parents=True, exist_ok=True)
        mounts.mount_memory(paths.mounts, 0, "mode=755")
        runtime, run_dir = paths.runtime, paths.run_dir
        for directory in (runtime, run_dir, self._drive):
            directory.mkdir(parents=True, mode=0o755)
        self._names.runc_root.mkdir(parents=True, exist_ok=True, mode=0o700)
        masks.setup(self._names.masks, bundle.MASKED_PATHS)
        for place in criu_probe.WATCHED:
            (image / place).mkdir()
        trees = host_trees(image)
        shutil.copyfile(criu_probe.__file__, runtime / "probe.py")
        await self._disk.create(self._paths, 0)
        await asyncio.to_thread(self._map_ids)
        if self._by is None:
            await run("ip", "netns", "add", self._names.netns(BOX))
            links = "link set lo up\nlink add eth0 type veth peer name eth1\n"
            await run("ip", "-n", self._names.netns(BOX), "-batch", "-", stdin=links)
        await self._disk.mount(self._paths, image, 0, self._by)
        plan = BoxPlan(
            box_id=BOX,
            hostname=BOX,
            image="",
            rootfs=image,
            runtime=runtime,
            run_dir=run_dir,
            cpus=1,
            mem_mb=256,
            pids=64,
            egress="none",
        )
        config = self._config(plan, trees)
        (self._paths.bundle / "config.json").write_text(json.dumps(config))
        with id_maps.acting_as(self._by):
            mount_points.create(self._root, config)
        self._configuration.write_text(criu_config.for_dump(drive=False))

    def _map_ids(self) -> None:
        ids = self._ranges.of(0)
        place = self._names.users / str(ids.first)
        with suppress(Unavailable):  # such a host can only have boxes without user namespaces
            id_maps.require(ids, self._names.users.parent / "check", [self._work])
            self._by = id_maps.pin(ids, place)

    @property
    def _root(self) -> Path:
        return self._paths.old_root if self._by is None else self._paths.root

    async def start(self) -> dict[str, Any]:
        """Start the box and return its state."""
        await self._runc(
            "run",
            "--detach",
            "--bundle",
            str(self._paths.bundle),
            "--pid-file",
            str(self._paths.pid),
            BOX,
            failure=lambda: Unavailable(f"no box can start: {last_words(self._paths.log)}"),
        )
        return await self._wait(lambda state: state["count"] > 0, "its first process does not run")

    async def suspend(self, before: dict[str, Any]) -> dict[str, Any]:
        """Pause, dump and kill the box, and return the state in which it was paused."""
        before = await self._wait(
            lambda state: state["count"] > before["count"], "the box makes no progress"
        )
        await run(*self._command(), "pause", BOX)
        before = self._state() or before
        await self._runc(
            *criu_config.dump(BOX, self._images, self._work, own_users=self._by is not None),
            failure=lambda: self._refusal("suspend", criu_config.DUMP_LOG),
        )
        processes.kill(cgroups.pids_of(self._layout, self._cgroup))
        await self._end()
        if self._state() != before:
            raise SelfTestFailed("the box continued to run after the dump")
        return before

    async def resume(self, before: dict[str, Any]) -> None:
        """Restore the box and check that its state continues."""
        tools = dump_restore.Tools(
            self._criu,
            self._names.runc_root,
            self._names.masks,
            tuple(cgroups.own_files(self._layout)),
        )
        try:
            await dump_restore.restore(
                tools,
                BOX,
                self._paths,
                dump_restore.Saved(self._images, self._work / "mark", self._cgroup, None),
                steps=Steps(
                    check=self._check_mounts,
                    connect=None if self._by is None else self._connect,
                ),
            )
        except RestoreRefused as refusal:
            raise SelfTestFailed(f"a resumed box does not have its mounts: {refusal}") from None
        except RestoreFailed as failure:
            raise SelfTestFailed(f"a box could not resume: {failure}") from None
        after = await self._wait(
            lambda state: state["count"] > before["count"], "the resumed box makes no progress"
        )
        if (after["nonce"], after["pid"]) != (before["nonce"], before["pid"]):
            raise SelfTestFailed("the resumed box has lost its memory")
        for directory in (self._root / criu_probe.WATCHED[0], self._drive):
            with id_maps.acting_as(self._by if directory != self._drive else None):
                (directory / _NEWS).touch()
        expected = {f"{place}/{_NEWS}" for place in criu_probe.WATCHED}
        deaf = "file watches report no events after a resume"
        await self._wait(lambda state: expected <= set(state["seen"]), deaf)

    async def _connect(self, _: int) -> None:
        """The box has no link. A real one gets it now."""

    async def _check_mounts(self, pid: int) -> None:
        config = json.loads((self._paths.bundle / "config.json").read_text())
        table = mount_table.parse(mounts.table(Path(f"/proc/{pid}/mountinfo")))
        if differences := mount_table.differences(config, table):
            raise BoxdError(mount_table.summary(differences))

    async def clear(self) -> None:
        """Remove everything, including the remains of an incomplete test."""
        await self._end()
        await cgroups.remove(self._layout, self._names.cgroup_parent)
        if self._names.netns_path(BOX).exists():
            await run("ip", "netns", "del", self._names.netns(BOX))
        for place in (self._paths.root, self._paths.old_root):
            mounts.unmount_everywhere(place)
        await asyncio.to_thread(mounts.unmount, self._paths.mounts, lazily=True)
        await asyncio.to_thread(trees.remove_tree, self._paths.mounts)
        for place in self._names.users.glob("*"):
            id_maps.unpin(place)
        await asyncio.to_thread(self._ranges.release)
        masks.remove(self._names.masks)
        await asyncio.to_thread(trees.remove_tree, self._work)
        root = self._names.runc_root
        for directory in (self._names.users, self._names.mounts, root, root.parent):
            with suppress(FileNotFoundError):
                directory.rmdir()

    async def _end(self) -> None:
        """Kill all processes, paused or not, and delete runc's record of the box."""
        processes.kill(cgroups.pids_of(self._layout, self._cgroup))
        cgroups.thaw(self._layout, self._cgroup)
        if (self._names.runc_root / BOX).exists():
            await run(*self._command(), "delete", "--force", BOX)
        processes.kill(cgroups.pids_of(self._layout, self._cgroup))
        await cgroups.remove(self._layout, self._cgroup)

    async def _runc(self, *arguments: str, failure: Callable[[], BoxdError]) -> None:
        """Run runc so that the processes it starts outlive it. Raise `failure()` on an error."""
        self._paths.log.unlink(missing_ok=True)
        logged = ("--log", str(self._paths.log), "--log-format", "json")
        # runc from 1.2 on ignores --criu and uses the first CRIU in PATH.
        command = (*mounts.apart(), *self._command(), *logged, *arguments)
        first = self._criu.parent
        if await run_silent(*command, timeout=STEP_TIMEOUT, first=first, alone=True) != 0:
            raise failure()

    def _command(self) -> tuple[str, ...]:
        return ("runc", "--root", str(self._names.runc_root), "--criu", str(self._criu))

    def _refusal(self, what: str, log: str) -> SelfTestFailed:
        """Return an error with CRIU's words, or runc's if CRIU wrote no log."""
        try:
            words = criu_config.complaint((self._work / log).read_text(errors="replace"))
        except FileNotFoundError:
            words = last_words(self._paths.log)
        return SelfTestFailed(f"a box could not {what}: {words}")

    async def _wait(self, condition: Callable[[dict[str, Any]], bool], why: str) -> dict[str, Any]:
        """Wait for a state of the box. Raise SelfTestFailed on a timeout."""
        deadline = time.monotonic() + WAIT_TIMEOUT
        while time.monotonic() < deadline:
            state = self._state()
            if state is not None and condition(state):
                return state
            await asyncio.sleep(criu_probe.PAUSE)
        raise SelfTestFailed(why)

    def _state(self) -> dict[str, Any] | None:
        try:
            state: dict[str, Any] = json.loads((self._root / "state").read_text())
        except FileNotFoundError:
            return None
        return state

    def _config(self, plan: BoxPlan, trees: list[Path]) -> dict[str, Any]:
        """Return a box's configuration, plus the host's programs and a mount at /wrk."""
        python = str(Path(sys.executable).resolve())
        netns = self._names.netns_path(BOX)
        config = bundle.config(
            plan,
            bundle.Places(
                root=self._root,
                netns=netns,
                cgroup=self._cgroup,
                masks=self._names.masks,
                run_dir=plan.run_dir,
                runtime=plan.runtime,
            ),
            bundle.HostFacts(
                nofile=resource.getrlimit(resource.RLIMIT_NOFILE)[1],
                caps_swap=cgroups.caps_swap(self._layout),
                hidden=bundle.hidden(),
            ),
            (python, "-I", "-S", "-B", f"{bundle.RUNTIME_DIR}/probe.py"),
            ids=None if self._by is None else self._by.ids,
        )
        config["annotations"] = {criu_config.ANNOTATION: str(self._configuration)}
        config["mounts"] += [_bind(str(tree), tree, "ro") for tree in trees]
        config["mounts"].append(_bind(bundle.DRIVE_DIR, self._drive, "rw"))
        return config

    @property
    def _configuration(self) -> Path:
        return self._paths.criu_config


def host_trees(image: Path) -> list[Path]:
    """Return directories of this host that its Python needs; copy links to them into `image`."""
    trees = [Path("/usr")]
    for name in LIBRARIES:
        host = Path("/", name)
        if host.is_symlink():
            (image / name).symlink_to(host.readlink())
        elif host.is_dir():
            trees.append(host)
    base = Path(sys.base_prefix).resolve()
    if not any(base.is_relative_to(tree) for tree in trees):
        trees.append(base)
    return trees


def _bind(destination: str, source: Path, how: str) -> dict[str, Any]:
    options = ["bind", how, "private", "nosuid", "nodev"]
    return {"destination": destination, "type": "bind", "source": str(source), "options": options}
