"""Arguments and elements are written plainly: `f(a, b)`, not `f(*(a, b))`."""

from __future__ import annotations

import ast

import pytest

from tests.checks.source import ROOT, product_files, python_files, tree, where

PROGRAMS = ("benchmarks", "scripts")
"""Folders of the project's own programs, which follow the rule like the packages."""


def packed(module: ast.Module) -> list[ast.Starred]:
    """No starred tuple or list literals: they only save lines, and hide the arguments."""
    return [
        node
        for node in ast.walk(module)
        if isinstance(node, ast.Starred) and isinstance(node.value, ast.Tuple | ast.List)
    ]


def test_no_literal_is_packed_and_unpacked_at_once() -> None:
    programs = [path for path in python_files() if path.relative_to(ROOT).parts[0] in PROGRAMS]
    assert not [
        where(path, node) for path in [*product_files(), *programs] for node in packed(tree(path))
    ]


@pytest.mark.parametrize("text", ["f(*(a, b))", "x = [*(a, b), c]", "x = (*[a], c)"])
def test_packing_is_found(text: str) -> None:
    assert len(packed(ast.parse(text))) == 1


@pytest.mark.parametrize("text", ["f(*names)", "x = [*(n for n in names)]", "a, *b = c", "f((a,))"])
def test_other_stars_are_allowed(text: str) -> None:
    assert not packed(ast.parse(text))
