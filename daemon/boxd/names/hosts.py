"""Host names as operators write them: names of the API, the preview domain, origins of pages."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from boxd.errors import BadRequest

MAX_HOST_NAME = 253
"""Maximum length of a host name, in characters."""
MAX_PREVIEW_DOMAIN = MAX_HOST_NAME - 64
"""Maximum length of a preview domain, in characters. Hosts add a 63-character label and a dot."""
_LABEL = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")


def parse_host_names(text: str, flag: str) -> tuple[str, ...]:
    """Return the host names of a comma-separated list, in lower case. Raises BadRequest."""
    names = tuple(part.strip().lower() for part in text.split(",") if part.strip())
    for name in names:
        if len(name) > MAX_HOST_NAME or not all(map(_LABEL.fullmatch, name.split("."))):
            raise BadRequest(
                f"{flag}: {name!r} is not a host name; give names without scheme and port, for "
                "example api.example.com"
            )
    return names


def parse_domain(text: str, flag: str) -> str:
    """Return a preview domain in lower case. Raises BadRequest."""
    domain = text.lower()
    labels = domain.split(".")
    is_valid = all(map(_LABEL.fullmatch, labels)) and len(domain) <= MAX_PREVIEW_DOMAIN
    if not is_valid or labels[-1].isdigit():
        raise BadRequest(
            f"{flag}: {text!r} is not a domain of at most {MAX_PREVIEW_DOMAIN} characters, without"
            " '*.' and port, for example preview.example.net"
        )
    return domain


def parse_origins(text: str, flag: str) -> tuple[str, ...]:
    """Return the origins of a comma-separated list, as browsers send them. Raises BadRequest."""
    origins = tuple(part.strip().lower() for part in text.split(",") if part.strip())
    for origin in origins:
        if not _is_origin(origin):
            raise BadRequest(
                f"{flag}: {origin!r} is not an origin; give scheme and host, for example "
                "https://app.example.com"
            )
    return origins


def _is_origin(text: str) -> bool:
    try:
        parts = urlsplit(text)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and text == f"{parts.scheme}://{parts.netloc}"
