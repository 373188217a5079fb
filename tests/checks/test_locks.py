"""The lock files pin all Python packages with hashes, and agree with pyproject.toml."""

from __future__ import annotations

import re
import tomllib
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.checks.source import ROOT

LOCKS = ("run", "dev", "build", "go", "mcpclients", "agentlibs")
SHA256 = re.compile(r"--hash=sha256:[0-9a-f]{64}")


@pytest.mark.parametrize("name", LOCKS)
def test_every_requirement_has_a_hash(name: str) -> None:
    blocks = _blocks(name)
    assert blocks
    for block in blocks:
        requirement, *hashes = block.split()
        assert "==" in requirement, requirement
        assert hashes, requirement
        assert all(map(SHA256.fullmatch, hashes)), requirement


def test_the_locks_have_the_versions_of_pyproject() -> None:
    project = _pyproject()["project"]
    extras = project["optional-dependencies"]
    served = _pins([*project["dependencies"], *extras["guest"], *extras["daemon"]])
    assert served.items() <= _locked("run").items()
    assert (served | _pins(extras["dev"])).items() <= _locked("dev").items()


def test_the_build_has_the_setuptools_of_pyproject() -> None:
    assert _pins(_pyproject()["build-system"]["requires"]).items() <= _locked("build").items()
    inputs = (ROOT / "scripts/lock/build.in").read_text().splitlines()
    assert _pins([line for line in inputs if line[:1] != "#"]).items() <= _locked("build").items()


def test_a_package_has_the_same_version_in_all_locks() -> None:
    assert _locked("run").items() <= _locked("dev").items()
    build, dev = _locked("build"), _locked("dev")
    assert all(dev.get(name, version) == version for name, version in build.items())


def _blocks(name: str) -> list[str]:
    text = (ROOT / f"scripts/lock/{name}.txt").read_text().replace("\\\n", " ")
    return [line for line in text.splitlines() if line.strip() and line[0] != "#"]


def _locked(name: str) -> dict[str, str]:
    return _pins([block.split()[0] for block in _blocks(name)])


def _pins(requirements: list[str]) -> dict[str, str]:
    parsed = map(Requirement, requirements)
    return {canonicalize_name(one.name): str(one.specifier) for one in parsed}


def _pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())
