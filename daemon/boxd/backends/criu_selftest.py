"""Whether CRIU suspends and resumes boxes on this host, tried with a real one.

What `criu check` says is worth little: *measured*, CRIU 4.1 passes it and dies in the dump, and
after a resume by 4.2 watches of files never fire again. So a tiny box is made as the backend makes
boxes (its bundle, root overlay, cgroup and network namespace; the interpreter of this host in
it), suspended as boxes are (paused, dumped, killed) and brought back; then its memory must be the
old one, its counter must go on, and its watches must fire.
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

from boxd.backends import bundle, cgroups, criu_config, criu_probe, disk, mounts, processes, trees
from boxd.backends.hostnames import HostNames
from boxd.backends.interface import BoxPlan
from boxd.backends.run import last_words, run, run_silent
from boxd.config import Config
from boxd.errors import BoxdError, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable

TIMEOUT = 60.0
"""Seconds for all of it; *measured* some 2 on 2 cores."""
STEP_TIMEOUT = 30.0
WAIT_TIMEOUT = 10.0
"""Seconds in which what lives shows that it does."""
BOX = "self-test"
LIBRARIES = ("bin", "lib", "lib32", "lib64", "sbin")
"""Directories of this host beside /usr that programs need, where they are no links into it."""
_NEWS = "news"


class SelfTestFailed(BoxdError):
    """CRIU did not bring the box back. Anything else that went wrong says nothing about CRIU."""


async def try_out(criu: Path, work: Path) -> None:
    """Suspends and resumes a box of its own with its files below `work`, by the CRIU at `criu`.

    Nothing is left when this returns, also not of an earlier one that was cut short; two at once
    must not have the same `work`. Raises SelfTestFailed, and Unavailable or other errors when it
    could not be tried.
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
        raise Unavailable(f"it did not end within {TIMEOUT:.0f} s") from None
    finally:
        await test.clear()


class _SelfTest:
    """One box and its files; the steps are called in their order."""

    def __init__(self, criu: Path, work: Path) -> None:
        self._criu = criu
        self._work = work
        # Names by its own directory: no box and no daemon ever takes them for its own.
        self._names = HostNames(Config(state_dir=work).instance, work)
        self._paths = self._names.paths(BOX)
        self._cgroup = self._names.cgroup(BOX)
        self._layout = cgroups.detect()
        self._disk = disk.PlainDisk(work / "snapshots")
        self._drive = work / "drive"
        self._images = work / "images"

    async def prepare(self) -> None:
        """Makes files, root, network namespace and bundle."""
        image, runtime, run_dir = (self._work / name for name in ("image", "runtime", "run"))
        for directory in (image, runtime, run_dir, self._drive, self._images, self._paths.bundle):
            directory.mkdir(parents=True, mode=0o755)
        self._names.runc_root.mkdir(parents=True, exist_ok=True, mode=0o700)
        for place in criu_probe.WATCHED:
            (image / place).mkdir()
        trees = host_trees(image)
        shutil.copyfile(criu_probe.__file__, runtime / "probe.py")
        await self._disk.create(self._paths, 0)
        await self._disk.mount(self._paths, image, 0)
        await run("ip", "netns", "add", self._names.netns(BOX))
        await run(
            *("ip", "-n", self._names.netns(BOX), "-batch", "-"),
            stdin="link set lo up\nlink add eth0 type veth peer name eth1\n",
        )
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
        (self._paths.bundle / "config.json").write_text(json.dumps(self._config(plan, trees)))
        self._configuration.write_text(criu_config.for_dump(drive=False))

    async def start(self) -> dict[str, Any]:
        """Starts the box and tells its state."""
        await self._runc(
            *("run", "--detach", "--bundle", str(self._paths.bundle)),
            *("--pid-file", str(self._paths.pid), BOX),
            failure=lambda: Unavailable(f"no box can be started: {last_words(self._paths.log)}"),
        )
        return await self._wait(lambda state: state["count"] > 0, "its first process does not run")

    async def suspend(self, before: dict[str, Any]) -> dict[str, Any]:
        """Pauses, dumps and kills it, and tells the state in which it was paused."""
        before = await self._wait(lambda state: state["count"] > before["count"], "it stands still")
        await run(*self._command(), "pause", BOX)
        before = self._state() or before
        await self._runc(
            *criu_config.dump(BOX, self._images, self._work),
            failure=lambda: self._refusal("suspend", criu_config.DUMP_LOG),
        )
        processes.kill(cgroups.pids_of(self._layout, self._cgroup))
        await self._end()
        if self._state() != before:
            raise SelfTestFailed("the box ran on after its memory was written")
        return before

    async def resume(self, before: dict[str, Any]) -> None:
        """Restores it and looks whether it is the same one."""
        self._configuration.write_text(criu_config.for_restore(None))
        await self._runc(
            *criu_config.restore(
                *(BOX, self._images, self._work),
                bundle=self._paths.bundle,
                pid_file=self._paths.pid,
            ),
            failure=lambda: self._refusal("resume", criu_config.RESTORE_LOG),
        )
        after = await self._wait(
            lambda state: state["count"] > before["count"], "the resumed box does not go on"
        )
        if (after["nonce"], after["pid"]) != (before["nonce"], before["pid"]):
            raise SelfTestFailed("the resumed box has lost its memory")
        for directory in (self._paths.root / criu_probe.WATCHED[0], self._drive):
            (directory / _NEWS).touch()
        wanted = {f"{place}/{_NEWS}" for place in criu_probe.WATCHED}
        deaf = "watches of files are deaf after a resume"
        await self._wait(lambda state: wanted <= set(state["seen"]), deaf)

    async def clear(self) -> None:
        """Removes everything, whatever there is of it."""
        await self._end()
        await cgroups.remove(self._layout, self._names.cgroup_parent)
        if self._names.netns_path(BOX).exists():
            await run("ip", "netns", "del", self._names.netns(BOX))
        mounts.unmount(self._paths.root, lazily=True)
        await asyncio.to_thread(trees.remove_tree, self._work)
        for directory in (self._names.runc_root, self._names.runc_root.parent):
            with suppress(FileNotFoundError):
                directory.rmdir()

    async def _end(self) -> None:
        """Ends all processes, paused or not, and removes what runc keeps of the box."""
        processes.kill(cgroups.pids_of(self._layout, self._cgroup))
        cgroups.thaw(self._layout, self._cgroup)
        if (self._names.runc_root / BOX).exists():
            await run(*self._command(), "delete", "--force", BOX)
        processes.kill(cgroups.pids_of(self._layout, self._cgroup))
        await cgroups.remove(self._layout, self._cgroup)

    async def _runc(self, *arguments: str, failure: Callable[[], BoxdError]) -> None:
        """Runs runc where what it starts outlives it; raises the failure that it stands for."""
        self._paths.log.unlink(missing_ok=True)
        logged = ("--log", str(self._paths.log), "--log-format", "json")
        # From 1.2 on runc takes the first CRIU that it finds, whatever it is told.
        command = (*self._command(), *logged, *arguments)
        first = self._criu.parent
        if await run_silent(*command, timeout=STEP_TIMEOUT, first=first, alone=True) != 0:
            raise failure()

    def _command(self) -> tuple[str, ...]:
        return ("runc", "--root", str(self._names.runc_root), "--criu", str(self._criu))

    def _refusal(self, what: str, log: str) -> SelfTestFailed:
        """By CRIU's words, and by runc's where CRIU did not get as far."""
        try:
            words = criu_config.complaint((self._work / log).read_text(errors="replace"))
        except FileNotFoundError:
            words = last_words(self._paths.log)
        return SelfTestFailed(f"a box could not {what}: {words}")

    async def _wait(self, condition: Callable[[dict[str, Any]], bool], why: str) -> dict[str, Any]:
        """Waits for a state of the box; SelfTestFailed when it does not come about."""
        deadline = time.monotonic() + WAIT_TIMEOUT
        while time.monotonic() < deadline:
            state = self._state()
            if state is not None and condition(state):
                return state
            await asyncio.sleep(criu_probe.PAUSE)
        raise SelfTestFailed(why)

    def _state(self) -> dict[str, Any] | None:
        try:
            state: dict[str, Any] = json.loads((self._paths.root / "state").read_text())
        except FileNotFoundError:
            return None
        return state

    def _config(self, plan: BoxPlan, trees: list[Path]) -> dict[str, Any]:
        """A box's configuration, with the host's programs and a mount at /wrk in it."""
        python = str(Path(sys.executable).resolve())
        netns, empty = self._names.netns_path(BOX), self._paths.empty
        empty.mkdir(mode=0o555, exist_ok=True)
        config = bundle.config(
            plan,
            bundle.Places(self._paths.root, netns, self._cgroup, empty),
            bundle.HostFacts(
                nofile=resource.getrlimit(resource.RLIMIT_NOFILE)[1],
                caps_swap=cgroups.caps_swap(self._layout),
                hidden=bundle.hidden(),
            ),
            (python, "-I", "-S", "-B", f"{bundle.RUNTIME_DIR}/probe.py"),
        )
        config["annotations"] = {criu_config.ANNOTATION: str(self._configuration)}
        config["mounts"] += [_bind(str(tree), tree, "ro") for tree in trees]
        config["mounts"].append(_bind(bundle.DRIVE_DIR, self._drive, "rw"))
        return config

    @property
    def _configuration(self) -> Path:
        return self._work / "criu.conf"


def host_trees(image: Path) -> list[Path]:
    """Directories of this host that its Python needs; links among them are made in `image`."""
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
