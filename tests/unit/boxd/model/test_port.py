"""Tables of sockets that programs in a box may have made up."""

from __future__ import annotations

import pytest

from boxd.model.port import MAX_PORTS, ListeningPort, listening_ports

HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid\n"


def line(local: str, state: str = "0A") -> str:
    """A line as the kernel writes it."""
    return f"   0: {local} 00000000:0000 {state} 00000000:00000000 00:00000000 00000000     0\n"


@pytest.mark.parametrize(
    ("local", "expected", "proxied"),
    [
        ("0100007F:1F90", ListeningPort(8080, "127.0.0.1"), True),
        ("00000000:0016", ListeningPort(22, "0.0.0.0"), True),  # noqa: S104 - binds nothing
        ("0200000A:0BB8", ListeningPort(3000, "10.0.0.2"), False),
        ("00000000000000000000000000000000:0BB8", ListeningPort(3000, "::"), True),
        ("00000000000000000000000001000000:0BB8", ListeningPort(3000, "::1"), False),
        ("0000000000000000FFFF00000100007F:0BB8", ListeningPort(3000, "127.0.0.1"), True),
    ],
)
def test_addresses(local: str, expected: ListeningPort, proxied: bool) -> None:
    assert listening_ports(HEAD + line(local)) == [expected]
    assert expected.proxied is proxied


def test_only_listening_sockets_count_and_once() -> None:
    table = HEAD + line("0100007F:1F90") * 2 + line("0100007F:1F91", "01") + line("0100007F:0016")
    assert [one.port for one in listening_ports(table, table)] == [22, 8080]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x" * 100_000,
        "0: " * 10_000,
        line("0100007F:1F9"),
        line("0100007G:1F90"),
        line("0100007F:1F90", "zz"),
        "\0\n\ufffd\n",
    ],
)
def test_other_lines_are_ignored(text: str) -> None:
    assert listening_ports(text) == []


def test_a_list_has_a_limit() -> None:
    table = "".join(line(f"0100007F:{number:04X}") for number in range(1, 5000))
    assert len(listening_ports(table)) == MAX_PORTS
