"""Files and functions stay small enough to read at once."""

from __future__ import annotations

import ast
import statistics

from tests.checks.source import product_files, python_files, tree, where

MAX_FILE = 600
MAX_FUNCTION = 60
MAX_MEDIAN = 200


def test_no_file_is_too_long() -> None:
    long = {
        str(path): count
        for path in python_files()
        if (count := len(path.read_text().splitlines())) > MAX_FILE
    }
    assert not long


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
