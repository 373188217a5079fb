"""Only listed files read the environment and arguments, or import modules inside functions."""

from __future__ import annotations

import ast

from tests.checks.source import PACKAGES, ROOT, product_files, tree, where

MAY_READ_ENVIRONMENT = {
    "config.py",
    "cli.py",
    "__main__.py",
    "criu_relay.py",
    "enter.py",
    "front.py",
    "service_manager.py",
}
"""Files that read the environment or arguments.

`criu_relay.py` is a program that runc starts, and `enter.py` one that starts the service's servers.
`front.py` changes the environment of a process that changes its user. `service_manager.py` takes
systemd's variables out of it.
"""
EDGE = {("os", "environ"), ("os", "getenv"), ("sys", "argv")}
LATE_IMPORTS_ALLOWED = {
    # The agent's start-up time is part of a box's creation, so the agent imports modules late
    # that its first second does not need.
    ROOT / PACKAGES["box_guest"]: "start-up path of the agent",
    # Commands of the command line do not load the whole service to print their help.
    ROOT / PACKAGES["boxd"] / "cli": "start-up path of the command line",
    ROOT / PACKAGES["wrkfs"] / "cli.py": "start-up path of the command line",
    # Few services use these clients, which are a third of all loaded code.
    ROOT / PACKAGES["boxd"] / "backends/choose.py": "the client of Docker",
    ROOT / PACKAGES["boxd"] / "doctor.py": "the client of Docker",
    ROOT / PACKAGES["boxd"] / "sandbox/calls.py": "libseccomp, which a host may lack",
    ROOT / PACKAGES["boxd"] / "backup/target_url.py": "the client of S3",
    ROOT / PACKAGES["boxd"] / "telemetry/choose.py": "the libraries of metrics and traces",
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
