"""Command blocks of a Markdown guide, and the commands in them."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_BLOCK = re.compile(r"^```(\w*)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_NOT_RUN = re.compile(r'^ title="Not run by the tests: ([^"]+)"$')


@dataclass(frozen=True)
class Block:
    """A fenced block. `not_run` is the reason why no test runs it, or None."""

    language: str
    text: str
    not_run: str | None = None

    def commands(self) -> list[str]:
        """Return complete shell commands, with their comments, in order."""
        found: list[str] = []
        pending = ""
        for line in self.text.splitlines():
            pending += line
            if pending.strip() and _complete(pending):
                found.append(pending)
                pending = ""
            elif pending:
                pending += "\n"
        assert not pending, f"not a complete command: {pending!r}"
        return found


def blocks(guide: Path) -> list[Block]:
    """Return all fenced blocks in reading order."""
    text = guide.read_text()
    result = [Block(match[1], match[3], _reason(match[2])) for match in _BLOCK.finditer(text)]
    assert text.count("```") == 2 * len(result), f"{guide.name}: a block is not closed"
    return result


def pages(root: Path) -> list[Path]:
    """Return README.md and the pages of docs/guide, in the order of the site's navigation."""
    guide = re.findall(r": (guide/[\w-]+\.md)$", (root / "mkdocs.yml").read_text(), re.MULTILINE)
    return [root / "README.md", *(root / "docs" / name for name in guide)]


def _reason(info: str) -> str | None:
    """Return why no test runs a block, from the text after the language on its first line."""
    if not info.strip():
        return None
    match = _NOT_RUN.match(info)
    assert match is not None, f"a block with an unknown mark: {info!r}"
    return match[1]


def _complete(text: str) -> bool:
    if text.endswith("\\"):
        return False
    parsed = subprocess.run(["bash", "-n", "-c", text], capture_output=True, check=False)
    return parsed.returncode == 0
