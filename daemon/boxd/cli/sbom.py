"""The command `boxd sbom`: what is installed with the service, as a CycloneDX document."""

from __future__ import annotations

import hashlib
import re
import subprocess
from importlib import metadata
from typing import TYPE_CHECKING
from urllib.parse import unquote

from boxd.version import DISTRIBUTION, VERSION

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator
    from pathlib import Path

    from cyclonedx.model.component import Component

    from boxd.config import Config

LICENSE = "Apache-2.0"
"""SPDX identifier of the licence of the service."""
DEBIAN_PACKAGES = (
    "ca-certificates", "curl", "python3", "python3-venv", "python3-dev", "gcc", "libc6-dev",
    "pkg-config", "libfuse3-dev", "patch", "fuse3", "postgresql-15", "runc", "iproute2", "nftables",
    "procps", "util-linux", "libseccomp2", "mmdebstrap", "btrfs-progs", "openssh-client",
)  # fmt: skip
"""The Debian packages that scripts/setup installs for the service."""


def unpacked(prefix: Path) -> Iterator[tuple[str, str, str]]:
    """Yield name, version and SHA-256 of each package that a script unpacked into a directory."""
    sums = prefix / "debs/SHA256SUMS"
    if not sums.is_file():
        return
    for line in sums.read_text().splitlines():
        digest, file = line.split()
        name, version, _ = file.removeprefix("*").split("_", 2)
        yield name, unquote(version), digest


def sbom(config: Config, arguments: argparse.Namespace) -> int:
    """Print what is installed with the service; return 0."""
    from cyclonedx.model.bom import Bom
    from cyclonedx.model.component import Component, ComponentType
    from cyclonedx.model.license import DisjunctiveLicense
    from cyclonedx.output import make_outputter
    from cyclonedx.schema import OutputFormat, SchemaVersion

    del config, arguments
    service = Component(
        name=DISTRIBUTION,
        version=VERSION,
        type=ComponentType.APPLICATION,
        licenses=[DisjunctiveLicense(id=LICENSE)],
    )
    bom = Bom(components=[*_python(), *_debian(), *_programs()])
    bom.metadata.component = service
    bom.register_dependency(service, bom.components)
    print(make_outputter(bom, OutputFormat.JSON, SchemaVersion.V1_6).output_as_string(indent=2))
    return 0


def _component(kind: str, name: str, version: str, digest: str = "") -> Component:
    from cyclonedx.model import HashAlgorithm, HashType
    from cyclonedx.model.component import Component, ComponentType
    from packageurl import PackageURL

    space = "debian" if kind == "deb" else None
    return Component(
        name=name,
        version=version,
        type=ComponentType.LIBRARY if kind == "pypi" else ComponentType.APPLICATION,
        purl=PackageURL(kind, space, name, version),
        bom_ref=f"{kind}:{name}@{version}{':' if digest else ''}{digest}",
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=digest)] if digest else (),
    )


def _python() -> Iterator[Component]:
    distributions = {(one.name, one.version) for one in metadata.distributions()}
    for name, version in sorted(distributions):
        yield _component("pypi", name, version)


def _debian() -> Iterator[Component]:
    """Yield the installed Debian packages of the service."""
    query = ("dpkg-query", "-W", "-f", "${Package}\t${Version}\t${db:Status-Status}\n")
    try:
        answer = subprocess.run(
            (*query, *DEBIAN_PACKAGES), capture_output=True, text=True, check=False
        )
    except FileNotFoundError:  # not a Debian system
        return
    for line in answer.stdout.splitlines():
        name, version, status = line.split("\t")
        if status == "installed":
            yield _component("deb", name, version)


def _programs() -> Iterator[Component]:
    """Yield the programs that the setup unpacked beside the system's packages."""
    from boxd.backends.checkpoint import criu
    from boxd.backends.oci import lxcfs

    for name, version, digest in unpacked(criu.PREFIX):
        yield _component("deb", name, version, digest)
    program = lxcfs.PREFIX / "root/usr/bin/lxcfs"
    if program.is_file():
        answer = subprocess.run(
            (lxcfs.PREFIX / "bin/lxcfs", "--version"), capture_output=True, text=True, check=False
        )
        words = re.search(r"[0-9][0-9.]*", answer.stdout + answer.stderr)
        digest = hashlib.sha256(program.read_bytes()).hexdigest()
        yield _component("generic", "lxcfs", words.group() if words else "", digest)
