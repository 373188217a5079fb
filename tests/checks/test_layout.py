"""Folders and signatures stay small enough to understand at once."""

from __future__ import annotations

import ast
from collections import Counter

from tests.checks.source import ROOT, product_files, python_files, tree, where

MAX_FILES = 20
"""Maximum number of code files in one folder."""
MAX_PARAMETERS = 7
"""Maximum number of parameters of one function, without self."""
MANY_PARAMETERS: dict[str, str] = {}
"""Functions with more parameters, and the reason of each."""


def test_no_folder_is_crowded() -> None:
    files = Counter(
        str(path.parent.relative_to(ROOT)) for path in product_files() if path.name != "__init__.py"
    )
    crowded = {folder: count for folder, count in files.items() if count > MAX_FILES}
    assert not crowded


def test_no_function_takes_many_parameters() -> None:
    many = {}
    for path in product_files():
        for node in ast.walk(tree(path)):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            names = [one.arg for one in arguments if one.arg not in ("self", "cls")]
            place = f"{path.relative_to(ROOT)}:{node.name}"
            if len(names) > MAX_PARAMETERS and place not in MANY_PARAMETERS:
                many[place] = len(names)
    assert not many


def test_no_folder_of_tests_or_benchmarks_is_crowded() -> None:
    files = Counter(
        str(path.parent.relative_to(ROOT))
        for path in python_files()
        if path.relative_to(ROOT).parts[0] in ("tests", "benchmarks") and path.name != "__init__.py"
    )
    crowded = {folder: count for folder, count in files.items() if count > MAX_FILES}
    assert not crowded


def test_no_module_imports_a_test_module() -> None:
    """Shared code of tests is in `tests/harness`."""
    imports = []
    for path in python_files():
        for node in ast.walk(tree(path)):
            match node:
                case ast.Import(names=names):
                    modules = [alias.name for alias in names]
                case ast.ImportFrom(module=str(module), names=names):
                    modules = [module, *(f"{module}.{alias.name}" for alias in names)]
                case _:
                    continue
            imports += [f"{where(path, node)} {name}" for name in modules if is_test(name)]
    assert not imports


def is_test(module: str) -> bool:
    """Return whether a dotted name is a test module of this project."""
    return any(
        module.startswith("tests.") and word.startswith("test_") for word in module.split(".")
    )
