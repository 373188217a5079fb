"""The guest runtime: a directory with everything that the agent needs, for boxes of any image.

It holds the interpreter that runs this daemon, its standard library, the agent's wheels, every
shared library of these and the dynamic loader. Boxes mount it read-only at /.box. A runtime is
named by the digest of its contents: changed code makes a new one beside those in use.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from importlib import metadata, resources
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from box_guest import protocol
from boxd.errors import Unavailable
from boxd.images.launcher import launcher

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    Progress: TypeAlias = Callable[[str], None]
    Contents: TypeAlias = dict[str, Path | bytes]

RECIPE = 1
"""Part of the digest; raised when the same files are put together in another way."""
WHEELS = ("asyncssh",)
"""What the agent imports; what these require comes along."""
DRIVE_WHEELS = ("pyfuse3", "uvloop", "asyncpg", "obstore", "crc32c")
"""What the mount process imports."""
MODULES = (
    "box_guest.ssh.tunnel, box_guest.agent, box_guest.cli, box_guest.ssh.relayd, box_guest.handover"
)
DRIVE_MODULES = f"{MODULES}, box_guest.mount.__main__"
LOADER = "ld-linux-x86-64.so.2"
CLI_COMMAND = (*protocol.AGENT_COMMAND[:-1], "box_guest.cli")
STEP_S = 300.0

_SKIPPED_DIRECTORIES = frozenset(
    {"__pycache__", "site-packages", "dist-packages", "test", "tests", "unittest"}
    | {"idlelib", "tkinter", "turtledemo", "lib2to3", "ensurepip", "distutils", "pydoc_data"}
    | {"curses", "dbm", "sqlite3", "venv", "wsgiref", "xmlrpc"}
)
_SKIPPED_FILES = frozenset({"sitecustomize.py", "antigravity.py", "this.py", "turtle.py"})
_SKIPPED_EXTENSIONS = re.compile(
    r"(_?xx|_test|_ctypes_test|_tkinter|_sqlite3|_dbm|_gdbm|_curses|readline|nis|ossaudiodev)"
)
_SKIPPED_BY_AGENT = re.compile(
    # OpenSSL's two: the agent speaks no TLS and cryptography brings its own. 4 MiB less in use.
    rf"({_SKIPPED_EXTENSIONS.pattern}|_ssl|_hashlib)"
)
_SKIPPED_MODULES = frozenset({"asyncssh/crypto/x509.py"})
"""Of the wheels. Asyncssh does without certificates: 1 MiB less in use, and a tenth of the time
that an agent takes to start less."""
_LIBRARY = re.compile(r"^\s+(?P<name>\S+) => (?P<path>/\S+) \(")
_LOADER_LINE = re.compile(rf"^\s+(?P<path>/\S*{re.escape(LOADER)}) \(")
_REQUIREMENT = re.compile(r"[A-Za-z0-9._-]+")
_NO_LIBRARIES = b'''"""The runtime carries every library that it uses."""


def find_library(name: str) -> None:
    """Nothing is found: the search of the standard library runs compilers of the image."""
'''


def build(parent: Path, progress: Progress, *, drive: bool = False) -> Path:
    """The runtime of this installation below `parent`; made now unless it is there.

    `drive`: with the mount process, for boxes that mount their drives themselves. Blocking, some
    10 s when it has to be made. May run twice at once: one result wins. Raises Unavailable when
    this machine or its Python does not lend itself to it.
    """
    if platform.machine() != "x86_64":
        raise Unavailable(f"the guest runtime needs an x86-64 machine, not {platform.machine()}")
    contents = _collect(drive=drive)
    target = parent / _digest(contents)[:16]
    if target.is_dir():
        return target
    progress("building the guest runtime")
    parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=parent, prefix=".making-") as making:
        made = Path(making) / "runtime"
        _write(made, contents)
        progress("compiling the guest runtime")
        _compile(made)
        _verify(made, DRIVE_MODULES if drive else MODULES)
        try:
            made.rename(target)
        except OSError:
            # Someone else was faster; theirs has the same contents.
            if not target.is_dir():
                raise
    return target


def _collect(*, drive: bool = False) -> Contents:
    """Where each file of the runtime comes from, by its path in it."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    library = f"lib/{version}"
    interpreter = Path(sys.executable).resolve()
    contents: Contents = {"bin/python3": interpreter}
    skipped = _SKIPPED_EXTENSIONS if drive else _SKIPPED_BY_AGENT
    contents.update(_tree(Path(sysconfig.get_path("stdlib")), library, skipped))
    # Distributions may keep them apart.
    contents.update(_tree(Path(sysconfig.get_path("platstdlib")), library, skipped))
    dynload = Path(sysconfig.get_config_var("DESTSHARED") or "")
    contents.update(_tree(dynload, f"{library}/lib-dynload", skipped))
    for name in _closure(WHEELS + DRIVE_WHEELS if drive else WHEELS):
        contents.update(_wheel(name, library, drive=drive))
    contents.update(_agent(f"{library}/box_guest"))
    if drive:
        contents.update(_drive(library))
    contents[f"{library}/ctypes/util.py"] = _NO_LIBRARIES
    contents.update(_libraries(contents))
    contents["bin/box-guest"] = launcher(CLI_COMMAND)
    return contents


def _tree(source: Path, target: str, skipped: re.Pattern[str]) -> Contents:
    """Modules below a directory, without extensions that are `skipped`."""
    contents: Contents = {}
    for directory, names, files in os.walk(source):
        names[:] = [
            name
            for name in names
            if name not in _SKIPPED_DIRECTORIES and not name.startswith("config-")
        ]
        relative = Path(directory).relative_to(source)
        for name in files:
            if name in _SKIPPED_FILES or not name.endswith((".py", ".so")):
                continue
            if name.endswith(".so") and skipped.match(name):
                continue
            contents[(Path(target) / relative / name).as_posix()] = Path(directory) / name
    return contents


def _closure(names: Iterable[str]) -> list[str]:
    """The named distributions and all that they require, extras left out.

    A requirement with a condition that is not installed is one for other machines or versions.
    """
    todo, found = [(name, "") for name in names], list[str]()
    while todo:
        name, condition = todo.pop()
        if name in found:
            continue
        try:
            requirements = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            if condition:
                continue
            raise Unavailable(f"{name} is not installed; run scripts/setup") from None
        found.append(name)
        for requirement in requirements:
            text, _, condition = requirement.partition(";")
            match = _REQUIREMENT.match(text)
            if match is not None and "extra" not in condition:
                todo.append((match.group(), condition.strip()))
    return found


def _wheel(name: str, target: str, *, drive: bool) -> Contents:
    """A distribution's modules; what the drive uses also asks for its own version."""
    contents: Contents = {}
    for file in metadata.files(name) or []:
        parts = file.parts
        if parts[0] == ".." or "__pycache__" in parts:
            continue
        if file.suffix not in (".py", ".so") and not (drive and file.name == "METADATA"):
            continue
        if file.as_posix() in _SKIPPED_MODULES:
            continue
        contents[f"{target}/{file.as_posix()}"] = Path(str(file.locate()))
    return contents


def _agent(target: str) -> Contents:
    """The agent's modules. The mount, most often a process of the host, stays out."""
    source = Path(protocol.__file__).parent
    return {
        f"{target}/{file.relative_to(source).as_posix()}": file
        for file in sorted(source.rglob("*.py"))
        if file.relative_to(source).parts[0] != "mount"
    }


def _drive(library: str) -> Contents:
    """The mount process: its modules, and those of the drive."""
    agent = Path(protocol.__file__).parent
    drive = Path(str(resources.files("wrkfs")))
    contents: Contents = {}
    for name, source in (("box_guest/mount", agent / "mount"), ("wrkfs", drive)):
        for file in sorted(source.rglob("*")):
            if file.suffix in (".py", ".sql") and "__pycache__" not in file.parts:
                contents[f"{library}/{name}/{file.relative_to(source).as_posix()}"] = file
    return contents


def _libraries(contents: Contents) -> Contents:
    """Every shared library that the interpreter and the extension modules load, and the loader."""
    programs = [
        str(source)
        for target, source in contents.items()
        if isinstance(source, Path) and (target == "bin/python3" or target.endswith(".so"))
    ]
    # ldd tells the failure of single files by its status too; what is missing shows in _verify.
    listing = _run(["ldd", *programs], check=False)
    found: Contents = {}
    for line in listing.splitlines():
        if (match := _LIBRARY.match(line)) is not None:
            found[f"lib/{match['name']}"] = Path(match["path"]).resolve()
        elif (match := _LOADER_LINE.match(line)) is not None:
            found[f"lib/{LOADER}"] = Path(match["path"]).resolve()
    if f"lib/{LOADER}" not in found:
        raise Unavailable(f"{sys.executable} is not linked with the GNU C library")
    return found


def _digest(contents: Contents) -> str:
    digest = hashlib.sha256(f"{RECIPE}\n".encode())
    for target, source in sorted(contents.items()):
        data = source if isinstance(source, bytes) else source.read_bytes()
        digest.update(f"{target}\0{hashlib.sha256(data).hexdigest()}\n".encode())
    return digest.hexdigest()


def _write(root: Path, contents: Contents) -> None:
    for target, source in contents.items():
        path = root / target
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(source, bytes):
            path.write_bytes(source)
        else:
            shutil.copyfile(source, path)
        path.chmod(0o755 if _executable(target) else 0o644)
    for directory in _directories(root):
        directory.chmod(0o755)


def _executable(target: str) -> bool:
    return target.startswith("bin/") or target == f"lib/{LOADER}"


def _directories(root: Path) -> Iterator[Path]:
    yield root
    yield from (path for path in root.rglob("*") if path.is_dir())


def _compile(root: Path) -> None:
    """Compiles ahead: the directory is read-only in boxes. Sources are never looked at again."""
    _run(
        [
            *(sys.executable, "-m", "compileall", "-q", "-j", "0"),
            *("--invalidation-mode", "unchecked-hash"),
            *("-s", str(root), "-p", str(protocol.RUNTIME_DIR)),
            str(root / "lib"),
        ]
    )


def _verify(root: Path, modules: str) -> None:
    """Starts the new runtime where it stands and imports what its programs import."""
    place = str(protocol.RUNTIME_DIR)
    command = [part.replace(place, str(root), 1) for part in protocol.AGENT_COMMAND[:-2]]
    _run([*command, "-c", f"import {modules}"], env={})


def _run(command: list[str], *, check: bool = True, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=STEP_S, check=False, env=env
    )
    if check and done.returncode != 0:
        text = (done.stderr or done.stdout).strip()[-500:]
        raise Unavailable(f"the guest runtime cannot be built: {Path(command[0]).name}: {text}")
    return done.stdout
