"""`boxd doctor` and `boxd openapi`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from boxd.cli import main
from boxd.http.openapi.document import document

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.slow
def test_doctor_prints_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("--state-dir", str(tmp_path / "state"), "--ssh-addr", "127.0.0.1:0")
    assert main.main(["doctor", *flags]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["CHECK", "FOUND", "REMEDY"]
    assert any(line.startswith("/dev/fuse") and " ok " in line for line in lines)
    assert any(line.startswith("suspend ") for line in lines)
    assert list(tmp_path.iterdir()) == []


def test_openapi_prints_the_whole_document(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["openapi"]) == 0
    assert json.loads(capsys.readouterr().out) == document()
