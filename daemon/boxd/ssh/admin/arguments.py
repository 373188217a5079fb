"""Arguments that several commands of the administrators' console take."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse


def box_argument(parser: argparse.ArgumentParser) -> None:
    """Add one box of any owner."""
    parser.add_argument("box", metavar="ID|FINGERPRINT:NAME")


def boxes_argument(parser: argparse.ArgumentParser) -> None:
    """Add one or more boxes of any owner."""
    parser.add_argument("box", nargs="+", metavar="ID|FINGERPRINT:NAME")


def owner_argument(parser: argparse.ArgumentParser) -> None:
    """Add an owner."""
    parser.add_argument("owner", metavar="FINGERPRINT")


def owner_option(parser: argparse.ArgumentParser) -> None:
    """Add an owner as a filter."""
    parser.add_argument("--owner", metavar="FINGERPRINT")
