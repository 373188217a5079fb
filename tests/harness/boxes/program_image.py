"""Fixture `programs_rootfs`: an image with the programs that people run in boxes.

The first run builds it from Debian packages (recipe `catalog/images.toml`) and PyPI's JupyterLab,
and stores it beside the `debian` image for later runs. *Measured* on 2 cores: 90 s, 1.9 GB.
"""

from __future__ import annotations

import fcntl
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from boxd.images.catalog import Catalog
from boxd.images.recipes import load_recipes
from tests.harness.boxes.backend import IMAGES_DIR
from tests.harness.loop import run

NAME = "programs"
RECIPES = Path(__file__).parent / "catalog"
JUPYTER = ("jupyterlab==4.6.6", "ipykernel==7.4.0")
INSTALL = """
mount --bind "$1" "$2/wheels" && exec chroot "$2" sh -euc '
    python3 -m venv /opt/jupyter
    /opt/jupyter/bin/pip install --quiet --no-index --find-links /wheels "$@"' - "${@:3}"
"""


@pytest.fixture(scope="session")
def programs_rootfs() -> Path:
    """Return the root of the image. Tests never write to it."""
    IMAGES_DIR.mkdir(parents=True, exist_ok=True)
    catalog = Catalog(IMAGES_DIR, own=RECIPES)
    digest = load_recipes(RECIPES / "images.toml").by_name[NAME].digest
    with (IMAGES_DIR / f"{NAME}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # parallel test workers share the directory
        if not (catalog.is_built(NAME) and _is_complete(catalog.rootfs(NAME), digest)):
            run(catalog.build(NAME, lambda _: None))
            _add_jupyter(catalog.rootfs(NAME))
        return catalog.rootfs(NAME)


def _is_complete(root: Path, digest: str) -> bool:
    note = root / "opt/jupyter/requirements"
    return root.name.startswith(digest) and note.exists() and _packages() == note.read_text()


def _packages() -> str:
    return "\n".join(JUPYTER)


def _add_jupyter(root: Path) -> None:
    """Install JupyterLab in /opt/jupyter, with wheels that the host fetches."""
    with tempfile.TemporaryDirectory() as wheels:
        pip = (sys.executable, "-m", "pip", "download", "--quiet", "--only-binary=:all:")
        subprocess.run([*pip, "--dest", wheels, *JUPYTER], check=True)
        space = ("unshare", "--mount", "--pid", "--fork", "--net", "--kill-child")
        (root / "wheels").mkdir()
        environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root"}
        command = [*space, "bash", "-euc", INSTALL, "install", wheels, str(root), *JUPYTER]
        subprocess.run(command, check=True, env=environment)
        (root / "wheels").rmdir()
    (root / "opt/jupyter/requirements").write_text(_packages())
