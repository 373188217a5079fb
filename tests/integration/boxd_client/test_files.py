"""Files of a box, and moves and pages of a drive, in both forms, before a real service."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from boxd_client import Client, Conflict, NotFound

if TYPE_CHECKING:
    from collections.abc import Callable

    Call = Callable[[Callable[[Any], Any]], Any]

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(autouse=True)
def dev(url: str, key: str) -> None:
    """Create the box of these tests."""
    with Client(url, key) as client:
        client.box("dev").exec("true", check=True)


def test_files_of_a_box(client: Call) -> None:
    data = os.urandom(600_000)
    client(lambda c: c.box("dev").files.write("/srv/deep/ü b", data, mode=0o750))
    assert client(lambda c: c.box("dev").files.read("/srv/deep/ü b")) == data
    assert client(lambda c: c.box("dev").exec("stat -c %a '/srv/deep/ü b'")).stdout == "750\n"
    (entry,) = client(lambda c: c.box("dev").files.list("/srv/deep"))
    assert (entry.name, entry.is_dir, entry.size) == ("ü b", False, 600_000)
    assert client(lambda c: c.box("dev").files.exists("/srv/deep/ü b"))
    client(lambda c: c.box("dev").files.remove("/srv/deep"))
    assert not client(lambda c: c.box("dev").files.exists("/srv/deep/ü b"))
    with pytest.raises(NotFound):
        client(lambda c: c.box("dev").files.read("/srv/deep/ü b"))


def test_moves_and_copies_on_a_drive(client: Call) -> None:
    client(lambda c: c.drive().write("a", "one"))
    client(lambda c: c.drive().copy("a", "b"))
    client(lambda c: c.drive().move("a", "c"))
    assert client(lambda c: c.drive().read_text("b")) == "one"
    assert client(lambda c: c.drive().read_text("c")) == "one"
    with pytest.raises(Conflict):
        client(lambda c: c.drive().move("b", "c"))
    client(lambda c: c.drive().move("b", "c", replace=True))
    assert not client(lambda c: c.drive().exists("b"))
    client(lambda c: c.drive().remove("c"))


def test_a_listing_of_many_files(client: Call) -> None:
    client(lambda c: c.box("dev").exec("mkdir -p /wrk/many; cd /wrk/many; seq 2500 | xargs touch"))
    entries = client(lambda c: c.drive().list("many"))
    assert {entry.name for entry in entries} == {str(number) for number in range(1, 2501)}
    client(lambda c: c.drive().remove("many"))
