"""Settings for metrics, traces and logs."""

from __future__ import annotations

from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network, ip_address
from urllib.parse import urlsplit

from boxd.errors import BadRequest
from boxd.names.address import Address, parse_address
from boxd.names.flag import Flag, Group, declared

TRACES_PATH = "/v1/traces"
"""The path of traces on an OTLP receiver."""
_PRIVATE = (
    IPv4Network("10.0.0.0/8"),
    IPv4Network("172.16.0.0/12"),
    IPv4Network("192.168.0.0/16"),
    IPv4Network("127.0.0.0/8"),
    IPv6Network("fc00::/7"),
    IPv6Network("::1/128"),
)
"""Loopback, RFC 1918 and unique local addresses."""


def parse_private_address(text: str, flag: str) -> Address:
    """Return the address in `HOST:PORT`; the host is a private IP address or `localhost`.

    Raises BadRequest for every other address: the listener asks for no key.
    """
    address = parse_address(text, flag)
    if address.host == "localhost":
        return Address("127.0.0.1", address.port)
    try:
        host = ip_address(address.host)
    except ValueError:
        host = None
    if host is None or not any(host in network for network in _PRIVATE):
        raise BadRequest(
            f"{flag}: {text!r} is not a private address, and metrics need no key; give a loopback, "
            "RFC 1918 or unique local IP address, for example 127.0.0.1:9464"
        )
    return address


def parse_endpoint(text: str, flag: str) -> str:
    """Return the URL of an OTLP/HTTP receiver; without a path, its path is `/v1/traces`.

    Raises BadRequest, also for a URL with a password: other processes can read the arguments.
    """
    if "@" in text:
        raise BadRequest(
            f"{flag}: the URL contains a user name or password, which other processes can read; "
            "send traces to a local collector that has the credentials"
        )
    try:
        url = urlsplit(text)
        is_url = url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
        path = url.path.strip("/")
    except ValueError:
        is_url, path = False, ""
    if not is_url or "?" in text or "#" in text or not text.isprintable() or " " in text:
        raise BadRequest(
            f"{flag}: {text!r} is not the URL of a receiver, for example http://127.0.0.1:4318"
        )
    return text if path else text.rstrip("/") + TRACES_PATH


@dataclass(frozen=True, slots=True)
class TelemetrySettings:
    """What the service reports about itself, and in which form."""

    log_format: str = field(
        default="text",
        metadata=declared(
            Flag(
                "--log-format",
                Group.COMMON,
                "write the log as lines of text, or as one JSON object for each record",
                choices=("text", "json"),
            )
        ),
    )
    metrics_addr: Address | None = field(
        default=None,
        metadata=declared(
            Flag(
                "--metrics-addr",
                Group.LISTENERS,
                "serve metrics for Prometheus at this private address, without a key",
                "HOST:PORT",
                parse_private_address,
                default="not served",
            )
        ),
    )
    trace_endpoint: str | None = field(
        default=None,
        metadata=declared(
            Flag(
                "--trace-endpoint",
                Group.TRACES,
                "send OpenTelemetry traces to this OTLP/HTTP receiver",
                "URL",
                parse_endpoint,
                default="no traces",
            )
        ),
    )
