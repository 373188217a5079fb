"""Debian's Caddy in front of a service, with `docs/Caddyfile` and its own certificate authority.

Caddy listens on ports 80 and 443, as in production, so tests with it run in a room.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import os
import signal
import ssl
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from tests.harness.http.web import PREVIEW_DOMAIN
from tests.harness.ssh.openssh import kill
from tests.harness.wait import DEADLINE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from boxd.config import Address

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = ROOT / ".build/caddy/root/usr/bin/caddy"
SHIPPED = ROOT / "docs/Caddyfile"
API_HOST = "api.test"
PORT = 443
OWN_AUTHORITY = "\tlocal_certs\n\tskip_install_trust\n\tadmin off\n\tlog {\n\t\tlevel ERROR\n\t}"


START_S = 50.0
"""Seconds until the first certificate."""
ATTEMPT_S = 5.0
"""Seconds of one attempt to connect."""
NOT_YET_VALID = 9
"""X509_V_ERR_CERT_NOT_YET_VALID of OpenSSL."""


@dataclass(frozen=True)
class Caddy:
    """A running proxy; `directory` holds its files."""

    directory: Path

    @property
    def root_certificate(self) -> Path:
        """Return the path of its authority's root certificate."""
        return self._authority / "root.crt"

    @property
    def issuer_pin(self) -> str:
        """Return the SHA-256 of the authority's signing key, in Chromium's format."""
        found = x509.load_pem_x509_certificate((self._authority / "intermediate.crt").read_bytes())
        key = found.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        return base64.b64encode(hashlib.sha256(key).digest()).decode()

    @property
    def _authority(self) -> Path:
        return self.directory / "caddy/pki/authorities/local"

    @property
    def context(self) -> ssl.SSLContext:
        """Return a TLS context for clients that trust only its authority."""
        return ssl.create_default_context(cafile=self.root_certificate)

    async def handshake(self, host: str) -> tuple[str, ...]:
        """Return the names in the certificate that Caddy presents for a host.

        Raises ssl.SSLError if it presents none, or one for another host. A certificate is valid
        from the second of its creation. If the machine's clock steps back at that moment, this
        method waits until the certificate is valid.
        """
        async with asyncio.timeout(DEADLINE):
            while True:
                try:
                    return await self._names(host)
                except ssl.SSLCertVerificationError as error:
                    if error.verify_code != NOT_YET_VALID:
                        raise
                await asyncio.sleep(0.02)

    async def _names(self, host: str) -> tuple[str, ...]:
        _, writer = await asyncio.open_connection(
            "127.0.0.1", PORT, ssl=self.context, server_hostname=host
        )
        try:
            shown = writer.get_extra_info("ssl_object").getpeercert()
        finally:
            writer.close()
            await writer.wait_closed()
        return tuple(name for _, name in shown["subjectAltName"])


@asynccontextmanager
async def serve_caddy(directory: Path, upstream: Address) -> AsyncIterator[Caddy]:
    """Run Caddy in front of `upstream` within the context."""
    if not PROGRAM.exists():
        raise RuntimeError(f"{PROGRAM} is missing: run scripts/caddy")
    config = directory / "Caddyfile"
    config.write_text(configuration(upstream))
    places = {"XDG_DATA_HOME": str(directory), "XDG_CONFIG_HOME": str(directory / "config")}
    log = directory / "log"
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *(PROGRAM, "run", "--config", config, "--adapter", "caddyfile"),
            env={**os.environ, **places},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    try:
        made = Caddy(directory)
        await _serving(made, process, log)
        yield made
    finally:
        kill(process, signal.SIGTERM)
        await process.wait()


def configuration(upstream: Address) -> str:
    """Return the shipped configuration with the names of the tests."""
    text = SHIPPED.read_text()
    for shipped, here in (
        ("\temail ops@example.com", OWN_AUTHORITY),
        ("api.example.com", API_HOST),
        ("preview.example.net", PREVIEW_DOMAIN),
        ("127.0.0.1:8080", str(upstream)),
    ):
        assert shipped in text
        text = text.replace(shipped, here)
    return text


async def _serving(caddy: Caddy, process: asyncio.subprocess.Process, log: Path) -> None:
    """Wait for the first certificate. Caddy creates its authority first."""
    async with asyncio.timeout(START_S):
        while True:
            if process.returncode is not None:
                raise RuntimeError(log.read_text())
            try:
                async with asyncio.timeout(ATTEMPT_S):  # one attempt may hang while Caddy starts
                    await caddy.handshake(API_HOST)
            except OSError:
                await asyncio.sleep(0.02)
            else:
                return
