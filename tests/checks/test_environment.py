"""Environment, arguments and late imports are read only where they belong."""

from __future__ import annotations

import ast

from tests.checks.source import PACKAGES, ROOT, product_files, tree, where

MAY_READ_ENVIRONMENT = {"config.py", "cli.py", "__main__.py", "criu_relay.py"}
"""The last is a program of its own, which runc starts."""
EDGE = {("os", "environ"), ("os", "getenv"), ("sys", "argv")}
LATE_IMPORTS_ALLOWED = {
    # The agent's start-up time is part of a box's creation: what its first second does not need
    # is imported when it is needed.
    ROOT / PACKAGES["box_guest"]: "start-up path of the agent",
    # Commands of the command line do not load the whole service to print their help.
    ROOT / PACKAGES["boxd"] / "cli": "start-up path of the command line",
    ROOT / PACKAGES["wrkfs"] / "cli.py": "start-up path of the command line",
    # Clients of what few services use are loaded by those alone: a third of all that is loaded.
    ROOT / PACKAGES["boxd"] / "backends/choose.py": "the client of Docker",
    ROOT / PACKAGES["boxd"] / "doctor.py": "the client of Docker",
    ROOT / PACKAGES["boxd"] / "backup/target_url.py": "the client of S3",
    ROOT / PACKAGES["boxd"] / "workspaces/credentials.py": "the client of S3",
}


def test_environment_and_arguments_are_read_only_at_the_edge() -> None:
    found: list[str] = []
    for path in product_files():
        if path.name in MAY_READ_ENVIRONMENT:
            continue
        found += [
            where(path, node)
            for node in ast.walk(tree(path))
            if isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and (node.value.id, node.attr) in EDGE
        ]
    assert not found


def test_no_import_hides_in_a_function() -> None:
    found = []
    for path in product_files():
        if any(path.is_relative_to(allowed) for allowed in LATE_IMPORTS_ALLOWED):
            continue
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                found += [
                    where(path, inner)
                    for inner in ast.walk(node)
                    if isinstance(inner, ast.Import | ast.ImportFrom)
                ]
    assert not found
