"""Files and functions stay small enough to read at once."""

from __future__ import annotations

import ast
import statistics

from tests.checks.source import ROOT, product_files, python_files, tree, where

MAX_FILE = 500
"""Maximum length of a file in lines. LONG_FILES lists the exceptions."""
LONG_FILES = {
    "daemon/boxd/backends/disks/disk.py": "one class, the disk of a box; its steps share the locks",
    "daemon/boxd/config.py": "one field for each flag, with its default and its help",
    "daemon/boxd/workspaces/drive.py": "the operations of HTTP on a drive, one method each",
    "guest-agent/box_guest/mount/operations.py": "one method for each FUSE request",
    "objectserver/http.py": "one method for each S3 request",
    "tests/contract/meta_store/test_meta_store_files.py": "one suite for both stores",
    "tests/contract/meta_store/test_meta_store_trash.py": "one suite for both stores",
    "tests/doubles/meta_store.py": "implements one protocol",
    "tests/integration/http/commands/test_api_exec.py": "one route and its cases",
    "tests/model/test_box_life.py": "one state machine of hypothesis",
    "tests/unit/wrkfs/test_writer.py": "one class and its cases",
    "wrkfs/fs.py": "one method for each call of the file system",
    "wrkfs/meta/leases/store.py": "one method for each call of the protocol that takes leases",
}
"""Files of up to MAX_LONG_FILE lines, and the reason of each."""
MAX_LONG_FILE = 600
MAX_FUNCTION = 60
MAX_MEDIAN = 200


def test_no_file_is_too_long() -> None:
    counts = {
        str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in python_files()
    }
    long = {name: count for name, count in counts.items() if count > MAX_FILE}
    assert long.keys() == LONG_FILES.keys()
    assert max(long.values()) <= MAX_LONG_FILE


def test_the_median_file_is_short() -> None:
    counts = [len(path.read_text().splitlines()) for path in product_files()]
    assert statistics.median(counts) <= MAX_MEDIAN


def test_no_function_is_too_long() -> None:
    long = []
    for path in python_files():
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                last = node.end_lineno or node.lineno
                if last - node.lineno + 1 > MAX_FUNCTION:
                    long.append(f"{where(path, node)} {node.name} {last - node.lineno + 1}")
    assert not long
