"""chmod(2), fchmod(2)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.mount.posix.tree import KINDS

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.mount.posix.tree import Tree


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "symlink"])
def test_every_mode_of_every_kind(tree: Tree, kind: str) -> None:
    tree.make(kind, "n")

    def change(mode: int) -> Callable[[], object]:
        return lambda: tree.ok("chmod", "n", mode)

    for mode in (0o0, 0o111, 0o222, 0o444, 0o1777, 0o2755, 0o4711, 0o6755, 0o7777, 0o640):
        changed = tree.times("n", change(mode))
        tree.has("n", perm=mode, nlink=2 if kind == "dir" else 1)
        assert changed == {"ctime"}
    tree.ok("symlink", "n", "s")
    tree.ok("chmod", "s", 0o600)
    tree.has("n", perm=0o600)
    tree.has("s", perm=0o777)
