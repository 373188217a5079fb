"""Protocol adapter only. The cookie `svc_proxy`: setting it, reading it and removing it.

`boxd.operations.preview_sessions` decides what a cookie allows and for how long.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from boxd.operations.preview_sessions import SESSION_TIME

if TYPE_CHECKING:
    from boxd.http.requests.headers import HeaderLines
    from boxd.secret import Secret

COOKIE_NAME = b"svc_proxy"
MAX_AGE_S = int(SESSION_TIME.total_seconds())
"""Seconds for which browsers store the cookie."""


def set_lines(
    value: Secret, paths: tuple[bytes, ...], *, tls: bool, partitioned: bool
) -> list[tuple[bytes, bytes]]:
    """Return Set-Cookie lines, one for each path.

    Browsers compare paths as text, so a box with two names needs two cookies. Without TLS browsers
    reject `SameSite=None`.
    """
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
    """Return the values of the cookie in all Cookie lines, in order."""
    values = []
    for name, value in lines:
        if name == b"cookie":
            for crumb in value.split(b";"):
                word, equals, content = crumb.partition(b"=")
                if equals and word.strip() == COOKIE_NAME:
                    values.append(content.strip().decode("latin-1"))
    return values


def without_crumb(value: bytes) -> bytes | None:
    """Return a Cookie value without our cookie, otherwise unchanged; None if nothing is left."""
    if COOKIE_NAME not in value:
        return value
    others = [item for item in value.split(b";") if item.partition(b"=")[0].strip() != COOKIE_NAME]
    rest = b";".join(others)
    if value.partition(b"=")[0].strip() == COOKIE_NAME:
        rest = rest.removeprefix(b" ")
    return rest if rest.strip(b" \t;") else None
