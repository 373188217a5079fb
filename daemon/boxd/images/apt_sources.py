"""Where packages come from: during a build, and later in the box. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
PUBLIC_ARCHIVE = "http://deb.debian.org/debian"
PUBLIC_SECURITY = "http://deb.debian.org/debian-security"


@dataclass(frozen=True, slots=True)
class Mirrors:
    """Where the Debian archive and its security updates are fetched from."""

    archive: str = PUBLIC_ARCHIVE
    security: str = PUBLIC_SECURITY


def find_mirrors(texts: list[str]) -> Mirrors:
    """The Debian mirrors in the host's apt sources (both formats); the public ones by default.

    Third-party sources do not matter: only addresses whose path ends in `/debian` or
    `/debian-security` count. An address with a password is never taken.
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
    found: list[str] = []
    for line in text.splitlines():
        words = line.split("#", 1)[0].split()
        if not words:
            continue
        if words[0].lower() == "uris:":
            found += words[1:]
        elif words[0] == "deb":
            found += [word for word in words[1:] if "://" in word][:1]
    return found


def build_sources(suite: str, mirrors: Mirrors) -> list[str]:
    """The one-line sources that a root is built from."""
    signed = f"deb [signed-by={KEYRING}]"
    return [
        f"{signed} {mirrors.archive} {suite} main",
        f"{signed} {mirrors.archive} {suite}-updates main",
        f"{signed} {mirrors.security} {suite}-security main",
    ]


def box_sources(suite: str) -> str:
    """The box's own sources: the public archive, because a private mirror is out of its reach."""
    return (
        f"Types: deb\nURIs: {PUBLIC_ARCHIVE}\nSuites: {suite} {suite}-updates\n"
        f"Components: main\nSigned-By: {KEYRING}\n\n"
        f"Types: deb\nURIs: {PUBLIC_SECURITY}\nSuites: {suite}-security\n"
        f"Components: main\nSigned-By: {KEYRING}\n"
    )
