"""Builds the guest runtime: a directory with everything that the agent needs in any image.

It contains the interpreter that runs this daemon, its standard library, the agent's wheels, their
shared libraries and the dynamic loader. Boxes mount it read-only at /.box. The name of a runtime is
the digest of its content, so changed code creates a new runtime beside those in use.
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
"""Part of the digest. Increase it when the same files are assembled in another way."""
WHEELS = ("asyncssh",)
"""Distributions that the agent imports. Their requirements are added."""
DRIVE_WHEELS = ("pyfuse3", "uvloop", "asyncpg", "msgpack", "obstore", "crc32c")
"""Distributions that the mount process imports."""
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
    # The two modules of OpenSSL: the agent uses no TLS, and cryptography has its own copy. Without
    # them the agent uses 4 MiB less memory.
    rf"({_SKIPPED_EXTENSIONS.pattern}|_ssl|_hashlib)"
)
_SKIPPED_MODULES = frozenset({"asyncssh/crypto/x509.py"})
"""Modules of the wheels that are left out.

Asyncssh works without X.509 certificates. Leaving out this module saves 1 MiB of memory and a tenth
of the agent's start time.
"""
_LIBRARY = re.compile(r"^\s+(?P<name>\S+) => (?P<path>/\S+) \(")
_LOADER_LINE = re.compile(rf"^\s+(?P<path>/\S*{re.escape(LOADER)}) \(")
_REQUIREMENT = re.compile(r"[A-Za-z0-9._-]+")
_NO_LIBRARIES = b'''"""The runtime carries every library that it uses."""


def find_library(name: str) -> None:
    """Return None. The search of the standard library would run compilers of the image."""
'''


def build(parent: Path, progress: Progress, *, drive: bool = False) -> Path:
    """Return the runtime of this installation below `parent`; build it if needed.

    `drive` adds the mount process, for boxes that mount their drives themselves. Blocks for about
    10 s if the runtime must be built. Two calls may run at once; one result wins. Raises
    Unavailable if this machine or its Python is unsuitable.
    """
    if platform.machine() != "x86_64":
        raise Unavailable(f"the guest runtime needs an x86-64 machine, not {platform.machine()}")
    contents = _collect_contents(drive=drive)
    target = parent / _digest(contents)[:16]
    if target.is_dir():
        return target
    progress("building the guest runtime")
    parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=parent, prefix=".unfinished-") as temporary:
        root = Path(temporary) / "runtime"
        _write(root, contents)
        progress("compiling the guest runtime")
        _compile(root)
        _verify(root, DRIVE_MODULES if drive else MODULES)
        try:
            root.rename(target)
        except OSError:
            # Another process was faster. Its runtime has the same content.
            if not target.is_dir():
                raise
    return target


def _collect_contents(*, drive: bool = False) -> Contents:
    """Return the source of each file of the runtime, by its path in the runtime."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    library = f"lib/{version}"
    interpreter = Path(sys.executable).resolve()
    contents: Contents = {"bin/python3": interpreter}
    skipped = _SKIPPED_EXTENSIONS if drive else _SKIPPED_BY_AGENT
    contents.update(_tree(Path(sysconfig.get_path("stdlib")), library, skipped))
    # Linux distributions may use two directories.
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
    """Return the modules below a directory, without `skipped` extension modules."""
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
    """Return the distributions with all their requirements, without extras.

    A conditional requirement that is not installed is meant for other machines or versions.
    """
    todo, closure = [(name, "") for name in names], list[str]()
    while todo:
        name, condition = todo.pop()
        if name in closure:
            continue
        try:
            requirements = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            if condition:
                continue
            raise Unavailable(f"{name} is not installed; run scripts/setup") from None
        closure.append(name)
        for requirement in requirements:
            text, _, condition = requirement.partition(";")
            match = _REQUIREMENT.match(text)
            if match is not None and "extra" not in condition:
                todo.append((match.group(), condition.strip()))
    return closure


def _wheel(name: str, target: str, *, drive: bool) -> Contents:
    """Return the modules of a distribution; for the drive, also its metadata.

    Some distributions of the drive read their own version.
    """
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
    """Return the modules of the agent, without the mount, which usually runs on the host."""
    source = Path(protocol.__file__).parent
    return {
        f"{target}/{file.relative_to(source).as_posix()}": file
        for file in sorted(source.rglob("*.py"))
        if file.relative_to(source).parts[0] != "mount"
    }


def _drive(library: str) -> Contents:
    """Return the modules of the mount process and of the drive."""
    agent = Path(protocol.__file__).parent
    drive = Path(str(resources.files("wrkfs")))
    contents: Contents = {}
    for name, source in (("box_guest/mount", agent / "mount"), ("wrkfs", drive)):
        for file in sorted(source.rglob("*")):
            if file.suffix in (".py", ".sql") and "__pycache__" not in file.parts:
                contents[f"{library}/{name}/{file.relative_to(source).as_posix()}"] = file
    return contents


def _libraries(contents: Contents) -> Contents:
    """Return the loader and all shared libraries of the interpreter and the extension modules."""
    programs = [
        str(source)
        for target, source in contents.items()
        if isinstance(source, Path) and (target == "bin/python3" or target.endswith(".so"))
    ]
    # The status of ldd also reports failures of single files. `_verify` finds missing libraries.
    listing = _run(["ldd", *programs], check=False)
    libraries: Contents = {}
    for line in listing.splitlines():
        if (match := _LIBRARY.match(line)) is not None:
            libraries[f"lib/{match['name']}"] = Path(match["path"]).resolve()
        elif (match := _LOADER_LINE.match(line)) is not None:
            libraries[f"lib/{LOADER}"] = Path(match["path"]).resolve()
    if f"lib/{LOADER}" not in libraries:
        raise Unavailable(
            f"{sys.executable} is not linked with the GNU C library; use Debian's Python"
        )
    return libraries


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
        path.chmod(0o755 if _is_executable(target) else 0o644)
    for directory in _directories(root):
        directory.chmod(0o755)


def _is_executable(target: str) -> bool:
    return target.startswith("bin/") or target == f"lib/{LOADER}"


def _directories(root: Path) -> Iterator[Path]:
    yield root
    yield from (path for path in root.rglob("*") if path.is_dir())


def _compile(root: Path) -> None:
    """Compile in advance, because the directory is read-only in boxes.

    The compiled files are valid without a check of their sources.
    """
    compiler = [sys.executable, "-m", "compileall", "-q", "-j", "0"]
    validity = ["--invalidation-mode", "unchecked-hash"]
    paths = ["-s", str(root), "-p", str(protocol.RUNTIME_DIR)]
    _run([*compiler, *validity, *paths, str(root / "lib")])


def _verify(root: Path, modules: str) -> None:
    """Start the new runtime at its temporary path, and import the modules of its programs."""
    place = str(protocol.RUNTIME_DIR)
    command = [part.replace(place, str(root), 1) for part in protocol.AGENT_COMMAND[:-2]]
    _run([*command, "-c", f"import {modules}"], env={})


def _run(command: list[str], *, check: bool = True, env: dict[str, str] | None = None) -> str:
    process = subprocess.run(
        command, capture_output=True, text=True, timeout=STEP_S, check=False, env=env
    )
    if check and process.returncode != 0:
        text = (process.stderr or process.stdout).strip()[-500:]
        raise Unavailable(f"the guest runtime cannot be built: {Path(command[0]).name}: {text}")
    return process.stdout
