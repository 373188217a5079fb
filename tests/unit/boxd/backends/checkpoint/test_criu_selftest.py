"""Parts of the self-test that need no box; what it says of real ones is in tests/integration."""

from __future__ import annotations

import sys
from pathlib import Path

from boxd.backends.checkpoint.criu_selftest import LIBRARIES, host_trees


def test_the_hosts_python_is_in_the_trees(tmp_path: Path) -> None:
    trees = host_trees(tmp_path)
    interpreter = Path(sys.executable).resolve()
    assert any(interpreter.is_relative_to(tree) for tree in trees)
    for name in LIBRARIES:
        host = Path("/", name)
        if host.is_symlink():
            assert (tmp_path / name).readlink() == host.readlink()
            assert host not in trees
        else:
            assert not (tmp_path / name).is_symlink()
            assert (host in trees) == host.is_dir()
