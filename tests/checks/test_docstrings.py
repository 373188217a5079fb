"""All public code of the product has docstrings, or implements a protocol that has them."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from functools import cache
from typing import TYPE_CHECKING

import pytest

from tests.checks.source import ROOT, product_files, tree, where

if TYPE_CHECKING:
    from collections.abc import Iterator

Function = ast.FunctionDef | ast.AsyncFunctionDef
IMPLEMENTS = re.compile(r"\bImplements ((?:`[\w.]+`(?:, | and )?)+)")
EXEMPT = frozenset({"overload", "override", "setter", "deleter"})
"""Decorators of functions that need no docstring: another definition has it."""


def test_everything_public_has_a_docstring() -> None:
    missing = []
    for path in product_files():
        module = tree(path)
        if ast.get_docstring(module) is None:
            missing.append(f"{path.relative_to(ROOT)}: the module has no docstring")
        missing += [f"{where(path, node)}: {name}" for name, node in _undocumented(module)]
    assert not missing


def test_implementing_classes_name_protocols_of_the_product() -> None:
    unknown = [
        f"{where(path, node)}: {node.name} implements {name}"
        for path in product_files()
        for node in ast.walk(tree(path))
        if isinstance(node, ast.ClassDef)
        for name in _implemented(node)
        if name not in _protocols()
    ]
    assert not unknown


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("def f(): ...", ["f"]),
        ("def _f(): ...", []),
        ("def f():\n  'Text.'\n  def inner(): ...", []),
        ("if A:\n  class C: ...", ["C"]),
        ("class _C:\n  def f(self): ...", []),
        ("class C:\n  'Text.'\n  def f(self): ...\n  def __len__(self): ...", ["C.f"]),
        ("class C:\n  'Text.'\n  @override\n  def f(self): ...", []),
        ("class C:\n  'Text.'\n  @name.setter\n  def name(self, value): ...", []),
        ("class C:\n  'Implements `Unknown`.'\n  def f(self): ...", ["C.f"]),
        ("class C:\n  'Implements `ControlStore`.'\n  def add_box(self): ...", []),
        ("class C:\n  'Implements `ControlStore`.'\n  def f(self): ...", ["C.f"]),
        ("class C:\n  'Implements `NodeStore` and\\n`LeaseStore`.'\n  def find(self): ...", []),
        ("class C:\n  'Implements `MetaStore`.'\n  def lookup(self): ...", []),
    ],
)
def test_definitions_without_docstring(source: str, expected: list[str]) -> None:
    assert [name for name, _ in _undocumented(ast.parse(source))] == expected


def _undocumented(
    module: ast.Module | ast.ClassDef, prefix: str = ""
) -> Iterator[tuple[str, ast.ClassDef | Function]]:
    """Yield the public definitions of a module or class that need a docstring and have none."""
    inherited = _inherited(module) if isinstance(module, ast.ClassDef) else frozenset[str]()
    for node in _definitions(module):
        name = prefix + node.name
        if node.name.startswith("_"):
            continue
        if isinstance(node, Function) and (node.name in inherited or EXEMPT & _decorators(node)):
            continue
        if ast.get_docstring(node) is None:
            yield name, node
        if isinstance(node, ast.ClassDef):
            yield from _undocumented(node, f"{name}.")


def _definitions(node: ast.AST) -> Iterator[ast.ClassDef | Function]:
    """Yield the classes and functions of a module or class, also those below `if` and `try`."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef | Function):
            yield child
        elif isinstance(child, ast.stmt | ast.ExceptHandler):
            yield from _definitions(child)


def _decorators(node: Function) -> set[str]:
    """Return the last word of each decorator."""
    return {ast.unparse(decorator).rpartition(".")[2] for decorator in node.decorator_list}


def _implemented(node: ast.ClassDef) -> list[str]:
    """Return the protocols that the docstring of a class names."""
    text = " ".join((ast.get_docstring(node) or "").split())
    return [
        name.rpartition(".")[2]
        for match in IMPLEMENTS.finditer(text)
        for name in re.findall(r"`([\w.]+)`", match[1])
    ]


def _inherited(node: ast.ClassDef) -> frozenset[str]:
    """Return the methods that the protocols of a class document."""
    return frozenset().union(*(_protocols().get(name, ()) for name in _implemented(node)))


@cache
def _protocols() -> dict[str, frozenset[str]]:
    """Return the documented methods of each protocol of the product, with those of its bases."""
    protocols: dict[str, list[ast.ClassDef]] = defaultdict(list)
    for path in product_files():
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.ClassDef) and "Protocol" in _bases(node):
                protocols[node.name].append(node)

    def documented(name: str) -> Iterator[str]:
        for node in protocols.get(name, ()):
            yield from (
                method.name
                for method in node.body
                if isinstance(method, Function) and ast.get_docstring(method) is not None
            )
            for base in _bases(node):
                yield from documented(base)

    return {name: frozenset(documented(name)) for name in protocols}


def _bases(node: ast.ClassDef) -> list[str]:
    """Return the last word of each base class, without type parameters."""
    return [ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in node.bases]
