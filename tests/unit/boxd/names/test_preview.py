"""Labels of preview hosts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from boxd.errors import BadName
from boxd.names.address import Address
from boxd.names.preview import (
    MAX_PORT,
    PreviewLabel,
    also_reads_as,
    example_url,
    label_below,
    parse_port,
    parse_preview_label,
    preview_authority,
    preview_url,
)
from boxd.names.reference import parse_reference
from tests.harness.strategies import NAMES
from tests.unit.boxd.names.refusal import value_or_refusal


@given(NAMES, st.integers(1, MAX_PORT))
def test_what_is_written_is_read_back(name: str, port: int) -> None:
    label = PreviewLabel(parse_reference(name), port)
    text = f"{label.reference}-{port}"
    assert parse_preview_label(text) == label
    assert parse_preview_label(text.upper()) == label


@pytest.mark.parametrize(
    ("label", "box", "port"),
    [("my-app-3000", "my-app", 3000), ("a-1", "a", 1), ("my-app-2-65535", "my-app-2", 65535)],
)
def test_the_box_is_all_before_the_last_hyphen(label: str, box: str, port: int) -> None:
    preview = parse_preview_label(label)
    assert (preview.reference.name, preview.port) == (box, port)


@pytest.mark.parametrize(
    "label",
    [
        *("", "web", "3000", "-3000", "web-", "web-0", "web-01", "web-65536", "web-+1"),
        *("web-\u0663", "a/b-1", "web--1", "a.b-1", "x" * 58 + "-65535"),
    ],
)
def test_refusals(label: str) -> None:
    with pytest.raises(BadName):
        parse_preview_label(label)


@given(st.text(max_size=80) | st.text(alphabet="ab-0123456789", max_size=70))
def test_any_label_is_read_or_refused(label: str) -> None:
    preview = value_or_refusal(lambda: parse_preview_label(label))
    assert preview is None or 1 <= preview.port <= MAX_PORT


@pytest.mark.parametrize(
    ("host", "label"),
    [
        ("web-80.preview.test", "web-80"),
        ("WEB-80.Preview.TEST:8443", "web-80"),
        ("web-80.preview.test.", "web-80"),
        ("web-80.preview.test.:443", "web-80"),
        ("a.b.preview.test", "a.b"),
        ("preview.test.preview.test", "preview.test"),
        *((host, None) for host in ("", "preview.test", ".preview.test", "web-80preview.test")),
        *((host, None) for host in ("web-80.preview.test.evil", "api.test", "[::1]:80", "::1")),
        *((host, None) for host in ("web-80.preview.test:http", "web-80.preview.test..")),
    ],
)
def test_what_stands_before_the_preview_domain(host: str, label: str | None) -> None:
    assert label_below(host, "preview.test") == label


def test_what_a_name_alone_means_before_the_preview_domain() -> None:
    assert also_reads_as("web") is None
    found = also_reads_as("web-3000")
    assert found is not None
    assert (found.reference.name, found.port) == ("web", 3000)


def test_ports() -> None:
    assert parse_port("8080") == 8080
    with pytest.raises(BadName, match="is not a port"):
        parse_port("99999")


def test_what_is_to_be_typed_can_be_typed() -> None:
    assert example_url("localhost", 8080) == "http://BOX-PORT.localhost:8080"
    assert example_url("p.localhost", 8080) == "http://BOX-PORT.p.localhost:8080"
    assert example_url("notlocalhost", 8080) == "https://BOX-PORT.notlocalhost"
    assert example_url("preview.example.net", 8080) == "https://BOX-PORT.preview.example.net"


def test_urls_of_previews() -> None:
    box_id, address = "0f3a41c2d5e6978811223344556677ff", Address("127.0.0.1", 8080)
    public = preview_authority("preview.example.net", address)
    assert preview_url(box_id, 3000, public) == "https://0f3a41c2d5e6-3000.preview.example.net/"
    local = preview_authority("preview.localhost", address)
    assert preview_url(box_id, 3000, local) == "http://0f3a41c2d5e6-3000.preview.localhost:8080/"
    assert preview_authority(None, address) is None
    assert preview_authority("preview.example.net", None) is None
    assert preview_url(box_id, 3000, None) is None
