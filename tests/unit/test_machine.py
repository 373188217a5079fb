"""What `make test` says of the machine before it begins."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests import machine

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_one_line_names_all_that_lacks() -> None:
    assert machine.line([]) == "This machine lacks: nothing."
    assert machine.line(["FUSE", "runc"]) == "This machine lacks: FUSE, runc."


def test_what_lacks_has_its_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "DISK", 1 << 60)
    monkeypatch.setattr(machine, "MEMORY", 1 << 60)
    monkeypatch.setattr(machine, "PROGRAMS", ("no-such-program",))
    monkeypatch.setattr(machine, "OPTIONAL", {"no-such-compiler": "nothing is compiled"})
    found = list(machine.lacking())
    text = machine.line(found)
    assert "GiB free at" in text
    assert "memory (" in text
    assert "no-such-program (run `make setup-dev`)" in text
    assert "no-such-compiler (nothing is compiled)" in text
    assert list(machine.disk(tmp_path))


def test_what_cannot_be_run_or_opened_lacks() -> None:
    assert machine._runs("true")
    assert not machine._runs("false")
    assert not machine._runs("/no/such/program")
    assert machine._opens("/dev/null")
    assert not machine._opens("/no/such/device")
