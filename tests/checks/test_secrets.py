"""Only `boxd/secret.py` compares secrets, in constant time."""

from __future__ import annotations

import ast
import re

from tests.checks.source import PACKAGES, ROOT, product_files, tree, where

SECRET_NAME = re.compile(r"(^|_)(token|secret|digest|password|api_key)$")
COOKIE = re.compile(r"(^|_)cookie$")
"""A cookie is a secret in the daemon, but a position in a directory in the drive."""


def _name(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    return node.attr if isinstance(node, ast.Attribute) else ""


def test_secrets_are_compared_in_constant_time() -> None:
    found = []
    for path in product_files():
        if path.name == "secret.py":
            continue
        for node in ast.walk(tree(path)):
            if not isinstance(node, ast.Compare):
                continue
            if not all(isinstance(op, ast.Eq | ast.NotEq | ast.In | ast.NotIn) for op in node.ops):
                continue
            sides = [node.left, *node.comparators]
            if any(isinstance(side, ast.Constant) for side in sides):
                continue
            daemon = path.is_relative_to(ROOT / PACKAGES["boxd"])
            names = [_name(side) for side in sides]
            if any(SECRET_NAME.search(name) or (daemon and COOKIE.search(name)) for name in names):
                found.append(where(path, node))
    assert not found
