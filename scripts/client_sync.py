"""Make the blocking client of `clients/python` from the one for asyncio.

It rewrites the tokens of each module of `_async` into `_sync`. `basis.py` exists in both by hand.
With `--check` it writes nothing; the exit status is 1 if a module of `_sync` is out of date.
"""

from __future__ import annotations

import argparse
import io
import re
import subprocess
import sys
import tokenize
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "clients/python/boxd_client"
BY_HAND = frozenset({"__init__.py", "basis.py"})
NAMES = {
    "AnyIOBackend": "SyncBackend",
    "StopAsyncIteration": "StopIteration",
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "__aiter__": "__iter__",
    "__anext__": "__next__",
    "_AsyncCollection": "_Collection",
    "_AsyncEventStream": "_EventStream",
    "_async": "_sync",
    "aclose": "close",
    "aclosing": "closing",
    "aiter_raw": "iter_raw",
    "anext": "next",
    "asynccontextmanager": "contextmanager",
    "enter_async_context": "enter_context",
}
_ASYNC_NAME = re.compile(r"Async(?=[A-Z])")
_KEYWORDS = re.compile(r"\b(async|await) ")
_OPTIONS = ("--quiet", "--config", str(ROOT / "pyproject.toml"))


def modules() -> dict[Path, str]:
    """Return the text of each generated module, by its path."""
    texts = {
        PACKAGE / "_sync" / path.name: converted(path.read_text(encoding="utf-8"))
        for path in sorted((PACKAGE / "_async").glob("*.py"))
        if path.name not in BY_HAND
    }
    return {path: _formatted(path, text) for path, text in texts.items()}


def converted(text: str) -> str:
    """Return a module without the syntax of asyncio, not yet formatted."""
    parts: list[tokenize.TokenInfo] = list(tokenize.generate_tokens(io.StringIO(text).readline))
    lines = text.splitlines(keepends=True)
    pieces: list[str] = []
    row, column = 1, 0
    for part in parts:
        begin_row, begin_column = part.start
        while row < begin_row:
            pieces.append(lines[row - 1][column:])
            row, column = row + 1, 0
        if begin_column > column:
            pieces.append(lines[row - 1][column:begin_column])
        row, column = part.end
        if part.type == tokenize.NAME and part.string in ("async", "await"):
            column += 1  # the space after the keyword
            continue
        if part.type != tokenize.DEDENT:
            pieces.append(_token(part))
    return "".join(pieces)


def _token(part: tokenize.TokenInfo) -> str:
    if part.type == tokenize.NAME:
        return _name(part.string)
    if part.type in (tokenize.STRING, tokenize.COMMENT):
        text = _KEYWORDS.sub("", part.string).replace("for asyncio", "that blocks")
        return re.sub(r"\w+", lambda match: _name(match[0]), text)
    return part.string


def _name(word: str) -> str:
    return NAMES.get(word) or _ASYNC_NAME.sub("", word, count=1)


def _formatted(path: Path, text: str) -> str:
    """Return a module with sorted imports, in the format of the project."""
    name = ("--stdin-filename", str(path))
    for command in (
        ("check", *_OPTIONS, "--fix-only", "--select", "I", *name, "-"),
        ("format", *_OPTIONS, *name, "-"),
    ):
        text = subprocess.run(
            [sys.executable, "-m", "ruff", *command],
            input=text,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    return text


def main() -> int:
    """Write the modules, or compare them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare only")
    check = parser.parse_args().check
    status = 0
    for path, text in modules().items():
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        if check:
            sys.stderr.write(f"out of date: {path.relative_to(ROOT)}\n")
            status = 1
        else:
            path.write_text(text, encoding="utf-8")
    return status


if __name__ == "__main__":
    sys.exit(main())
