"""Arguments that several commands of administrators take."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse


def box(parser: argparse.ArgumentParser) -> None:
    """One box of anybody."""
    parser.add_argument("box", metavar="ID|FINGERPRINT:NAME")


def boxes(parser: argparse.ArgumentParser) -> None:
    """One or more of them."""
    parser.add_argument("box", nargs="+", metavar="ID|FINGERPRINT:NAME")


def owner(parser: argparse.ArgumentParser) -> None:
    """An owner."""
    parser.add_argument("owner", metavar="FINGERPRINT")


def of_owner(parser: argparse.ArgumentParser) -> None:
    """An owner to whom the answer is confined."""
    parser.add_argument("--owner", metavar="FINGERPRINT")
