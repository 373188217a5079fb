"""The works on a real project, with the real programs and without the network."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import tarfile
import zipfile
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from wrkfs.bench import packages, project, real
from wrkfs.bench.place import (
    QUICK,
    Material,
    Place,
    Project,
    WorkloadFailed,
    place_from,
    place_values,
)
from wrkfs.bench.tools import run
from wrkfs.bench.workloads import BY_NAME, REAL

FILES = 30
NO_MATERIAL = Material("", "", 0, 0, (), 0, "offline")


@pytest.fixture
def made(tmp_path: Path) -> Project:
    """Return the material of a small project, without packages."""
    archive, repository = tmp_path / "project.tar.gz", tmp_path / "project.git"
    project.create_archive(archive, FILES)
    project.create_repository(repository, FILES)
    return Project(str(archive), str(repository), FILES, no_packages="offline")


@pytest.fixture
def place(tmp_path: Path, made: Project) -> Place:
    """Return a place whose material is the small project."""
    directory = tmp_path / "place"
    directory.mkdir()
    size = replace(QUICK, project=FILES, transactions=3)
    return Place(directory, tmp_path, size, replace(NO_MATERIAL, project=made))


def wheel(directory: Path) -> Path:
    """Return a wheel with one module."""
    path = directory / "one-1.0-py3-none-any.whl"
    about = "one-1.0.dist-info"
    contents = {
        "one.py": "def one():\n    return 1\n",
        f"{about}/METADATA": "Metadata-Version: 2.1\nName: one\nVersion: 1.0\n",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{about}/RECORD": f"one.py,,\n{about}/METADATA,,\n{about}/WHEEL,,\n{about}/RECORD,,\n",
    }
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in contents.items():
            archive.writestr(name, text)
    return path


def npm_project(directory: Path) -> Path:
    """Return a project that depends on an archive with one package, with a lock file."""
    source = directory / "package"
    source.mkdir()
    (source / "package.json").write_text('{"name": "one", "version": "1.0.0"}')
    (source / "index.js").write_text("function one() { return 1 }\n")
    with tarfile.open(directory / "one.tgz", "w:gz") as archive:
        archive.add(source, "package")
    app = directory / "npm"
    app.mkdir()
    dependencies = {"one": f"file:{directory / 'one.tgz'}"}
    manifest = {"name": "app", "version": "1.0.0", "dependencies": dependencies}
    (app / packages.MANIFEST).write_text(json.dumps(manifest))
    packages.install(app, app / packages.CACHE, offline=True)
    shutil.rmtree(app / "node_modules")
    return app


def test_a_project_has_the_same_bytes_each_time(tmp_path: Path, made: Project) -> None:
    project.create_archive(tmp_path / "again.tar.gz", FILES)
    assert (tmp_path / "again.tar.gz").read_bytes() == Path(made.archive).read_bytes()
    contents = dict(project.files(FILES))
    assert len(contents) == FILES
    assert any(real.PATTERN.encode() in content for content in contents.values())
    assert dict(project.files(5)).items() <= contents.items()


def test_a_clone_has_the_files_of_the_archive_and_its_history(place: Place) -> None:
    real.prepare_root(place)
    assert real.git_clone(place) == real.untar(place) == FILES
    clone, tree = place.path("real") / "clone", place.path("real") / "tree/project"
    names = run(["git", "-C", str(clone), "ls-files"]).decode().split()
    assert sorted(names) == sorted(name for name, _ in project.files(FILES))
    assert all((tree / name).is_file() for name in names)
    log = run(["git", "-C", str(clone), "log", "--format=%s"]).decode().splitlines()
    assert log[0] == "Change a tenth of the files"
    assert len(log) == 1 + FILES // 2
    assert real.git_status(place) == FILES


def test_git_status_fails_if_a_file_has_changed(place: Place) -> None:
    real.prepare_clone(place)
    name = next(iter(project.files(1)))[0]
    (place.path("real") / "clone" / name).write_text("other")
    with pytest.raises(WorkloadFailed, match="reports changes"):
        real.git_status(place)


def test_each_transaction_is_in_the_database(place: Place) -> None:
    real.prepare_root(place)
    assert real.transactions(place) == 3
    file = place.path("real") / "database/data.sqlite"
    with closing(sqlite3.connect(file)) as connection:
        assert connection.execute("SELECT count(*) FROM item").fetchone() == (3,)
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("delete",)
    assert os.listdir(file.parent) == [file.name]


def test_packages_and_wheels_are_parts_of_the_searches_and_of_the_removal(
    tmp_path: Path, place: Place, made: Project
) -> None:
    app = npm_project(tmp_path)
    with_packages = replace(made, packages=str(app), package_files=2, no_packages="")
    material = replace(place.material, project=with_packages, wheels=(str(wheel(tmp_path)),))
    everything = replace(place, material=replace(material, wheel_files=4))
    real.prepare_parts(everything)
    root = everything.path("real")
    assert (root / "app/node_modules/one/index.js").is_file()
    assert list(root.glob("venv/lib/python3*/site-packages/one.py"))
    assert list(root.glob("venv/lib/python3*/site-packages/__pycache__/one.*.pyc"))
    count = 2 * FILES + 1 + 2 + 4
    assert real.find(everything) == real.grep(everything) == count
    assert real.rm_rf(everything) == count
    assert not root.exists()


def test_find_fails_if_files_are_missing(place: Place) -> None:
    real.prepare_parts(place)
    for part in ("clone", "tree"):
        shutil.rmtree(place.path("real") / part)
    with pytest.raises(WorkloadFailed, match=f"at least {2 * FILES + 1} files"):
        real.find(place)


def test_a_work_without_material_names_the_reason(place: Place) -> None:
    with pytest.raises(WorkloadFailed, match="no packages for npm: offline"):
        real.npm_install(place)
    with pytest.raises(WorkloadFailed, match="no wheels: offline"):
        real.pip_install(place)
    with pytest.raises(WorkloadFailed, match="no material"):
        real.untar(replace(place, material=NO_MATERIAL))


def test_a_place_with_a_project_is_carried_as_json(place: Place) -> None:
    assert place_from(json.loads(json.dumps(place_values(place)))) == place


def test_the_real_works_are_in_the_table() -> None:
    parts = {"git_clone", "untar", "npm_install", "pip_install", "sqlite", "rm_rf"}
    searches = {"find_cold", "grep_cold", "grep_warm", "git_status_cold"}
    assert {f"real_{name}" for name in parts | searches} == REAL
    assert list(BY_NAME)[-1] == "real_rm_rf"
