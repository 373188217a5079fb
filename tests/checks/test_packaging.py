"""The Debian package depends on what the setup installs, except for programs that only build."""

from __future__ import annotations

import re

from boxd.cli.sbom import DEBIAN_PACKAGES
from tests.checks.source import ROOT

BUILD_ONLY = {
    "curl": "first steps of the README",
    "python3": "the package needs python3.11",
    "python3-venv": "makes the virtual environment, which the package contains",
    "python3-dev": "builds pyfuse3",
    "gcc": "builds pyfuse3",
    "libc6-dev": "builds pyfuse3",
    "pkg-config": "builds pyfuse3",
    "libfuse3-dev": "builds pyfuse3; the package needs libfuse3-3",
    "patch": "builds pyfuse3",
}
"""Packages of the setup that the Debian package does not need, and the reason of each."""


def test_the_package_depends_on_what_the_service_needs() -> None:
    control = (ROOT / "packaging/debian/control").read_text()
    match = re.search(r"^Depends: (.*)$", control, re.MULTILINE)
    assert match is not None
    depends = {word.split()[0] for word in match[1].split(",")}
    assert set(DEBIAN_PACKAGES) - BUILD_ONLY.keys() <= depends
    assert {"python3.11", "libfuse3-3"} <= depends
    assert not depends & BUILD_ONLY.keys()
