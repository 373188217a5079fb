"""Accounts of a box."""

from __future__ import annotations

from typing import TYPE_CHECKING

from box_guest.process.accounts import Account, find

if TYPE_CHECKING:
    from pathlib import Path

ROOT = Account("root", 0, 0, "/root", "/bin/sh", ())


def test_account_with_its_groups(tmp_path: Path) -> None:
    (tmp_path / "passwd").write_text(
        "root:x:0:0:root:/root:/bin/bash\nann:x:1000:1001:Ann:/home/ann:/bin/zsh\n"
    )
    (tmp_path / "group").write_text("sudo:x:27:bob,ann\nann:x:1001:\nother:x:5:anne\n")
    assert find("ann", tmp_path) == Account("ann", 1000, 1001, "/home/ann", "/bin/zsh", (27,))


def test_empty_fields_have_defaults(tmp_path: Path) -> None:
    (tmp_path / "passwd").write_text("root:x:0:0:::\n")
    assert find("root", tmp_path) == Account("root", 0, 0, "/", "/bin/sh", ())


def test_unknown_user_and_missing_files_are_root(tmp_path: Path) -> None:
    assert find("root", tmp_path) == ROOT
    (tmp_path / "passwd").write_text("ann:x:1000:1001:Ann:/home/ann:/bin/zsh\n")
    assert find("nobody", tmp_path) == ROOT


def test_broken_lines_are_skipped(tmp_path: Path) -> None:
    (tmp_path / "passwd").write_bytes(
        b"root\n\xff\xfe\nroot:x:zero:0:r:/:/x\nroot:x:0:0:r:/r:/bin/ok\n"
    )
    assert find("root", tmp_path).shell == "/bin/ok"
