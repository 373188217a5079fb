"""Counts the worst patterns of language in code and documentation, file by file.

`python -m tests.checks.language --write` writes the current counts to `language_allowed.json`. The
check fails if a file has more findings of a rule than that file allows. A count must not grow.
"""

from __future__ import annotations

import ast
import json
import re
import sys
import tokenize
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from tests.checks.source import ROOT, product_files, tree

if TYPE_CHECKING:
    from collections.abc import Iterator

ALLOWED = Path(__file__).with_name("language_allowed.json")
MAX_WORDS = 40
"""Longest sentence of the documentation, in words."""
_SUBJECT = re.compile(
    r"(?:^|[.:;!?]\s+|\n\n)\s*(?:Who|Whoever|Nobody|What)\s+(?:is|has|was|does|comes|asks|may|can|\w+s)\b[^?]*?(?=[.;]|$)"
)
_SEE = re.compile(r"See [`\w.]+\.?")
PARTICIPLES = frozenset(
    {
        "begun",
        "called",
        "chosen",
        "done",
        "drawn",
        "found",
        "given",
        "gone",
        "got",
        "heard",
        "held",
        "kept",
        "known",
        "left",
        "lost",
        "made",
        "meant",
        "met",
        "paid",
        "put",
        "said",
        "seen",
        "sent",
        "shown",
        "taken",
        "thought",
        "told",
        "tried",
        "wanted",
        "worn",
    }
)
"""Names that describe what happened to a value instead of what the value is."""


def findings() -> Iterator[tuple[str, str, int, str]]:
    """Yield rule, file, line and text of each finding."""
    for path in product_files():
        name = str(path.relative_to(ROOT))
        for line, text in _texts(path):
            if _SEE.fullmatch(text.strip()):
                yield "see", name, line, text.strip()
            for match in _SUBJECT.finditer(text):
                yield "subject", name, line, " ".join(match[0].split())[:80]
        for node in ast.walk(tree(path)):
            for target in _assigned(node):
                if target.id in PARTICIPLES:
                    yield "participle", name, target.lineno, target.id
    for path in documents():
        name = str(path.relative_to(ROOT))
        for line, sentence in sentences(path.read_text(encoding="utf-8")):
            if len(sentence.split()) > MAX_WORDS:
                yield "long", name, line, sentence[:80]
            if _SUBJECT.match(sentence):
                yield "subject", name, line, sentence[:80]


def documents() -> list[Path]:
    """Return all documentation except the changelog, whose past entries do not change."""
    paths = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/*.md")]
    return sorted(path for path in paths if path.name != "CHANGELOG.md")


def sentences(text: str) -> Iterator[tuple[int, str]]:
    """Yield the sentences of a Markdown text with their lines, without code blocks.

    A list item, a table cell and a heading end a sentence, as a full stop does.
    """
    paragraph: list[str] = []
    begin, fenced = 1, False
    for number, line in enumerate([*text.split("\n"), ""], 1):
        bare = line.strip()
        if bare.startswith(("```", "~~~")):
            fenced = not fenced
            bare = ""
        elif fenced:
            bare = ""
        starts = bare.startswith(("- ", "* ", "#", "|", ">")) or re.match(r"\d+\. ", bare)
        if (not bare or starts) and paragraph:
            yield from ((begin, one) for one in _split(" ".join(paragraph)))
            paragraph = []
        if not bare:
            continue
        if not paragraph:
            begin = number
        if bare.startswith("|"):
            yield from ((number, one) for cell in bare.split("|") for one in _split(cell))
        else:
            paragraph.append(bare.lstrip("-*#> "))


def counts() -> dict[str, dict[str, int]]:
    """Return the number of findings, by rule and file."""
    by_rule: dict[str, Counter[str]] = {}
    for rule, name, _, _ in findings():
        by_rule.setdefault(rule, Counter())[name] += 1
    return {rule: dict(sorted(files.items())) for rule, files in sorted(by_rule.items())}


def _split(text: str) -> list[str]:
    return [one for one in re.split(r"(?<=[.!?])\s+", text.strip()) if one]


def _texts(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the docstrings and the comments of a file."""
    for node in ast.walk(tree(path)):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield node.lineno, text
    with path.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            if token.type == tokenize.COMMENT:
                yield token.start[0], token.string.lstrip("# ")


def _assigned(node: ast.AST) -> Iterator[ast.Name]:
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, ast.AnnAssign | ast.For | ast.AsyncFor | ast.NamedExpr):
        targets = [node.target]
    for target in targets:
        for one in ast.walk(target):
            if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store):
                yield one


def main() -> None:
    """Print the findings, or store their counts as the allowed ones."""
    if sys.argv[1:] == ["--write"]:
        ALLOWED.write_text(json.dumps(counts(), indent=1) + "\n", encoding="utf-8")
        return
    for rule, name, line, text in findings():
        sys.stdout.write(f"{name}:{line}: {rule}: {text}\n")


if __name__ == "__main__":
    main()
