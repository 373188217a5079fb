"""The apt sources of builds and boxes."""

from __future__ import annotations

from boxd.images import apt_sources
from boxd.images.apt_sources import Mirrors

DEB822 = """Types: deb
# http://snapshot.debian.org/archive/debian/1
URIs: http://mirror.example/debian/
Suites: bookworm

Types: deb
URIs: https://mirror.example/debian-security
"""


def test_the_hosts_mirrors_are_used() -> None:
    expected = Mirrors("http://mirror.example/debian", "https://mirror.example/debian-security")
    assert apt_sources.find_mirrors([DEB822]) == expected
    lines = "deb [arch=amd64 signed-by=/k.gpg] http://one.example/debian bookworm main\n"
    lines += "deb-src http://two.example/debian bookworm main\ndeb\n"
    assert apt_sources.find_mirrors([lines]).archive == "http://one.example/debian"


def test_third_parties_and_passwords_are_not() -> None:
    text = "deb https://packages.example/apt stable main\ndeb file:/srv/debian x main\n"
    text += "deb http://user:word@mirror.example/debian bookworm main\n"
    assert apt_sources.find_mirrors([text, ""]) == Mirrors()


def test_builds_are_signed() -> None:
    lines = apt_sources.build_sources("bookworm", Mirrors())
    assert len(lines) == 3
    assert all(f"[signed-by={apt_sources.KEYRING}]" in line for line in lines)


def test_boxes_use_the_public_archive() -> None:
    text = apt_sources.box_sources("bookworm")
    assert apt_sources.find_mirrors([text]) == Mirrors()
    assert "mirror.example" not in text
