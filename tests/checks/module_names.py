"""Dotted names in documentation, and whether the code has what they name.

A name may be complete (`boxd.boxes.timing.policy`) or begin with any package of the product
(`boxes.timing.policy`, `timing.policy`). It may end with a class, function or constant of a module,
or with a member of a class. `wrkfs.commit` may also name a function of the SQL schema `wrkfs`.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from typing import TYPE_CHECKING

from tests.checks.source import PACKAGES, ROOT, python_files, tree

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

DOTTED = re.compile(r"[a-z_]\w*(\.\w+)+")
FILE_TYPES = frozenset({"json", "md", "py", "sql", "svg", "toml", "txt", "yml"})
"""Last words of names of files, such as `images.toml`."""
OTHERS = frozenset(
    {
        "inode.parent",
        "net.ipv4.conf.all",
        "os.environ",
        "session.run",
        "session.tenure",
        "sys.argv",
        "sys.setprofile",
    }
)
"""Dotted names of the schema, of the kernel and of Python."""
FOLDERS = PACKAGES | {name: name for name in ("tests", "benchmarks", "scripts")}
SQL_FUNCTION = re.compile(r"\bFUNCTION (wrkfs\.\w+)")


def is_dotted(text: str) -> bool:
    """Return whether a text reads as the name of a module, or of an object in one."""
    return bool(DOTTED.fullmatch(text)) and text.rpartition(".")[2] not in FILE_TYPES


def exists(name: str) -> bool:
    """Return whether the code has the module or object of this name."""
    words = tuple(name.split("."))
    if name in OTHERS or name in _sql_functions():
        return True
    for count in range(len(words), 0, -1):
        rest = words[count:]
        for module in _by_last_word().get(words[count - 1], ()):
            if _is_suffix(words[:count], module) and _defines(_modules()[module], rest):
                return True
    return False


def _is_suffix(words: tuple[str, ...], module: tuple[str, ...]) -> bool:
    """Return whether a module is complete in `words`, or its name ends with them.

    Modules outside of the product have only complete names.
    """
    return words == module or (module[0] in PACKAGES and module[-len(words) :] == words)


def _defines(path: Path, words: tuple[str, ...]) -> bool:
    """Return whether a module has `Class` or `Class.member`; no words mean the module itself."""
    body: Iterable[ast.stmt] = tree(path).body
    for place, word in enumerate(words):
        node = next((node for node in body if word in set(_bound(node))), None)
        if node is None:
            return False
        if not isinstance(node, ast.ClassDef):
            return place == len(words) - 1
        body = node.body
    return True


def _bound(node: ast.stmt) -> Iterator[str]:
    """Yield the names that a statement defines."""
    match node:
        case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            yield name
        case ast.Assign(targets=targets):
            for target in targets:
                yield from (one.id for one in ast.walk(target) if isinstance(one, ast.Name))
        case ast.AnnAssign(target=ast.Name(id=name)):
            yield name


@cache
def _modules() -> dict[tuple[str, ...], Path]:
    """Return the file of each module, by the words of its full name; of a package `__init__.py`."""
    modules = {}
    for path in python_files():
        for top, folder in FOLDERS.items():
            if path.is_relative_to(ROOT / folder):
                parts = path.relative_to(ROOT / folder).with_suffix("").parts
                package = parts[:-1] if parts[-1] == "__init__" else parts
                modules[(top, *package)] = path
    return modules


@cache
def _by_last_word() -> dict[str, list[tuple[str, ...]]]:
    modules: dict[str, list[tuple[str, ...]]] = {}
    for module in _modules():
        modules.setdefault(module[-1], []).append(module)
    return modules


@cache
def _sql_functions() -> frozenset[str]:
    files = (ROOT / "wrkfs/meta/sql").rglob("*.sql")
    return frozenset(name for file in files for name in SQL_FUNCTION.findall(file.read_text()))
