"""`boxd sbom`: a valid CycloneDX document that names what is installed."""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from boxd.backends.checkpoint import criu
from boxd.backends.oci import lxcfs
from boxd.cli import main
from boxd.cli.sbom import DEBIAN_PACKAGES

ROOT = Path(__file__).parents[2]


@pytest.fixture
def text(capsys: pytest.CaptureFixture[str]) -> str:
    assert main.main(["sbom"]) == 0
    return capsys.readouterr().out


def test_the_document_is_valid(text: str) -> None:
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None


def test_the_licence_of_the_service(text: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    service = json.loads(text)["metadata"]["component"]
    assert (service["name"], service["version"]) == (project["name"], project["version"])
    assert service["licenses"] == [{"license": {"id": project["license"]}}]


def test_every_distribution_is_named(text: str) -> None:
    named = {(one["name"], one["version"]) for one in _components(text, "pkg:pypi/")}
    assert named == {(one.name, one.version) for one in metadata.distributions()}


def test_the_debian_packages_of_the_setup_are_named(text: str) -> None:
    setup = (ROOT / "scripts/setup").read_text()
    block = re.search(r"^packages=\((.*?)^\)", setup, re.DOTALL | re.MULTILINE)
    assert block
    listed = re.sub(r"#.*", "", block.group(1)).split()
    assert listed == list(DEBIAN_PACKAGES)
    assert {"runc", "postgresql-15"} <= {one["name"] for one in _components(text, "pkg:deb/")}


def test_fetched_programs_have_their_sums(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    digest = "ab" * 32
    sums = tmp_path / "debs/SHA256SUMS"
    sums.parent.mkdir()
    sums.write_text(f"{digest}  libgmp10_2%3a6.3.0+dfsg-5_amd64.deb\n")
    program = tmp_path / "root/usr/bin/lxcfs"
    wrapper = tmp_path / "bin/lxcfs"
    for file in (program, wrapper):
        file.parent.mkdir(parents=True)
        file.write_text("#!/bin/sh\necho 5.0.3\n")
        file.chmod(0o755)
    monkeypatch.setattr(criu, "PREFIX", tmp_path)
    monkeypatch.setattr(lxcfs, "PREFIX", tmp_path)
    assert main.main(["sbom"]) == 0
    programs = {
        (one["name"], one["version"]): one["hashes"][0]["content"]
        for one in _components(capsys.readouterr().out, "pkg:")
        if "hashes" in one
    }
    own = hashlib.sha256(program.read_bytes()).hexdigest()
    assert programs == {("libgmp10", "2:6.3.0+dfsg-5"): digest, ("lxcfs", "5.0.3"): own}


def _components(text: str, kind: str) -> list[dict[str, Any]]:
    return [one for one in json.loads(text)["components"] if one["purl"].startswith(kind)]
