"""Addresses for metrics are private; endpoints of traces are URLs without credentials."""

from __future__ import annotations

import pytest

from boxd.config import Address
from boxd.errors import BadRequest
from boxd.settings.telemetry import parse_endpoint, parse_private_address


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("127.0.0.1:9464", "127.0.0.1"),
        ("localhost:9464", "127.0.0.1"),
        ("[::1]:9464", "::1"),
        ("10.1.2.3:9464", "10.1.2.3"),
        ("172.31.255.255:9464", "172.31.255.255"),
        ("192.168.0.1:9464", "192.168.0.1"),
        ("[fd00::1]:9464", "fd00::1"),
    ],
)
def test_private_addresses_are_accepted(text: str, host: str) -> None:
    assert parse_private_address(text, "--metrics-addr") == Address(host, 9464)


@pytest.mark.parametrize(
    "text",
    [
        ":9464",
        "0.0.0.0:9464",
        "[::]:9464",
        "192.0.2.1:9464",
        "172.32.0.1:9464",
        "100.64.0.1:9464",
        "169.254.169.254:9464",
        "[2001:db8::1]:9464",
        "[::ffff:8.8.8.8]:9464",
        "metrics.example.com:9464",
    ],
)
def test_other_addresses_are_refused(text: str) -> None:
    with pytest.raises(BadRequest, match=r"--metrics-addr: .* is not a private address.*127\.0"):
        parse_private_address(text, "--metrics-addr")


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("http://127.0.0.1:4318", "http://127.0.0.1:4318/v1/traces"),
        ("http://127.0.0.1:4318/", "http://127.0.0.1:4318/v1/traces"),
        ("https://traces.example.com/otlp/v1/traces", "https://traces.example.com/otlp/v1/traces"),
    ],
)
def test_an_endpoint_without_a_path_gets_the_standard_one(text: str, url: str) -> None:
    assert parse_endpoint(text, "--trace-endpoint") == url


@pytest.mark.parametrize(
    "text",
    ["", "127.0.0.1:4318", "grpc://host", "http://", "http://[", "http://h:99999", "http://h/?k=v"],
)
def test_other_endpoints_are_refused(text: str) -> None:
    with pytest.raises(BadRequest, match=r"--trace-endpoint: .* for example http://"):
        parse_endpoint(text, "--trace-endpoint")


def test_an_endpoint_with_a_password_is_refused_without_showing_it() -> None:
    with pytest.raises(BadRequest, match="collector") as refusal:
        parse_endpoint("https://user:hunter2@traces.example.com", "--trace-endpoint")
    assert "hunter2" not in str(refusal.value)
