"""Packages for npm: pinned versions, a lock file, and a cache from which npm installs offline."""

from __future__ import annotations

import json
import os
import shutil
from typing import TYPE_CHECKING

from wrkfs.bench.place import WorkloadFailed
from wrkfs.bench.tools import run

if TYPE_CHECKING:
    from pathlib import Path

PACKAGES = (
    "semver@7.6.3",
    "commander@12.1.0",
    "uuid@9.0.1",
    "yaml@2.6.0",
    "ws@8.18.0",
    "acorn@8.14.0",
    "immer@10.1.1",
    "marked@14.1.2",
    "redux@5.0.1",
    "nanoid@5.0.7",
    "zod@3.23.8",
    "preact@10.24.3",
    "react@19.0.0",
    "dayjs@1.11.13",
    "picocolors@1.1.1",
    "ms@2.1.3",
    "eventemitter3@5.0.1",
    "mime-db@1.53.0",
    "minimist@1.2.8",
    "tslib@2.8.1",
)
"""Packages without dependencies. A smaller set uses the first ones."""
MANIFEST, LOCK, CACHE = "package.json", "package-lock.json", "cache"
INSTALL = ("install", "--ignore-scripts", "--no-audit", "--no-fund", "--no-update-notifier")
RESOLVED = "--omit-lockfile-registry-resolved=false"
"""The lock file names the archives. npm then installs from them without asking for versions."""


def prepare_packages(directory: Path, pins: tuple[str, ...]) -> int:
    """Fill the cache and write the lock file unless they exist; return the number of files.

    Raises WorkloadFailed, OSError.
    """
    marker = directory / "files"
    if not marker.exists():
        part = directory.with_name(directory.name + ".part")
        shutil.rmtree(part, ignore_errors=True)
        shutil.rmtree(directory, ignore_errors=True)
        part.mkdir()
        pairs = dict(pin.rsplit("@", 1) for pin in pins)
        manifest = {"name": "app", "version": "1.0.0", "private": True, "dependencies": pairs}
        (part / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
        modules = part / "node_modules"
        install(part, part / CACHE, offline=False)
        shutil.rmtree(modules)
        # Now npm must succeed with only the cache.
        install(part, part / CACHE, offline=True)
        count = sum(len(names) for _, _, names in os.walk(modules))
        shutil.rmtree(modules)
        (part / marker.name).write_text(str(count), encoding="utf-8")
        part.rename(directory)
    return int(marker.read_text(encoding="utf-8"))


def install(project: Path, cache: Path, *, offline: bool) -> None:
    """Install the packages of a project from the cache. Raises WorkloadFailed.

    npm runs without scripts of packages. Without `offline`, it fetches what the cache lacks.
    """
    network = ["--offline"] if offline else []
    program = shutil.which("npm")
    if program is None:
        raise WorkloadFailed("npm is not installed")
    options = [*network, "--cache", str(cache), "--logs-max=0", "--prefix", str(project)]
    run([program, *INSTALL, RESOLVED, *options])
