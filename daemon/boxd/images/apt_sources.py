"""The apt sources of a build, and those in the box. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
PUBLIC_ARCHIVE = "http://deb.debian.org/debian"
PUBLIC_SECURITY = "http://deb.debian.org/debian-security"


@dataclass(frozen=True, slots=True)
class Mirrors:
    """The addresses of the Debian archive and of its security updates."""

    archive: str = PUBLIC_ARCHIVE
    security: str = PUBLIC_SECURITY


def find_mirrors(texts: list[str]) -> Mirrors:
    """Return the Debian mirrors in the host's apt sources (both formats), or the public ones.

    Only addresses whose path ends in `/debian` or `/debian-security` count. An address with a
    password is never used.
    """
    archive = security = None
    for text in texts:
        for url in _urls(text):
            parts = urlsplit(url)
            if parts.scheme not in {"http", "https"} or parts.username or parts.password:
                continue
            path = parts.path.rstrip("/")
            if path.endswith("/debian"):
                archive = archive or url.rstrip("/")
            elif path.endswith("/debian-security"):
                security = security or url.rstrip("/")
    return Mirrors(archive or PUBLIC_ARCHIVE, security or PUBLIC_SECURITY)


def _urls(text: str) -> list[str]:
    urls: list[str] = []
    for line in text.splitlines():
        words = line.split("#", 1)[0].split()
        if not words:
            continue
        if words[0].lower() == "uris:":
            urls += words[1:]
        elif words[0] == "deb":
            urls += [word for word in words[1:] if "://" in word][:1]
    return urls


def build_sources(suite: str, mirrors: Mirrors) -> list[str]:
    """Return the one-line sources for a build."""
    signed = f"deb [signed-by={KEYRING}]"
    return [
        f"{signed} {mirrors.archive} {suite} main",
        f"{signed} {mirrors.archive} {suite}-updates main",
        f"{signed} {mirrors.security} {suite}-security main",
    ]


def box_sources(suite: str) -> str:
    """Return the sources in the box: the public archive, as boxes cannot reach a private mirror."""
    return (
        f"Types: deb\nURIs: {PUBLIC_ARCHIVE}\nSuites: {suite} {suite}-updates\n"
        f"Components: main\nSigned-By: {KEYRING}\n\n"
        f"Types: deb\nURIs: {PUBLIC_SECURITY}\nSuites: {suite}-security\n"
        f"Components: main\nSigned-By: {KEYRING}\n"
    )
