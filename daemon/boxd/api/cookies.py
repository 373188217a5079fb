"""Protocol adapter only. The cookie `svc_proxy`: how it is set, and found in what browsers send."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from boxd.api.headers import HeaderLines
    from boxd.secret import Secret

COOKIE_NAME = b"svc_proxy"
MAX_AGE_S = 3600
"""How long browsers keep it, and the service takes it."""


def set_lines(
    value: Secret, paths: tuple[bytes, ...], *, tls: bool, partitioned: bool
) -> list[tuple[bytes, bytes]]:
    """Set-Cookie lines, one for each path: browsers compare paths as text, so that one box with
    two names needs two. Without TLS browsers take no `SameSite=None`."""
    site = b"Secure; SameSite=None" if tls else b"SameSite=Lax"
    last = b"; Partitioned" if tls and partitioned else b""
    return [
        (
            b"set-cookie",
            b"%s=%s; Path=%s; HttpOnly; %s; Max-Age=%d%s"
            % (COOKIE_NAME, value.reveal().encode(), path, site, MAX_AGE_S, last),
        )
        for path in dict.fromkeys(paths)
    ]


def crumbs(lines: HeaderLines) -> list[str]:
    """Values of our cookie in all Cookie lines, in order."""
    found = []
    for name, value in lines:
        if name == b"cookie":
            for crumb in value.split(b";"):
                word, equals, content = crumb.partition(b"=")
                if equals and word.strip() == COOKIE_NAME:
                    found.append(content.strip().decode("latin-1"))
    return found


def without_crumb(value: bytes) -> bytes | None:
    """The value of a Cookie line without our cookie; the rest stands as it stood. None: no rest."""
    if COOKIE_NAME not in value:
        return value
    kept = [crumb for crumb in value.split(b";") if crumb.partition(b"=")[0].strip() != COOKIE_NAME]
    rest = b";".join(kept)
    if value.partition(b"=")[0].strip() == COOKIE_NAME:
        rest = rest.removeprefix(b" ")
    return rest if rest.strip(b" \t;") else None
