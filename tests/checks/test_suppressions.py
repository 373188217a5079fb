"""Each suppression has a code and a reason, and their number does not grow."""

from __future__ import annotations

import re

from tests.checks.source import ROOT, python_files

MOST = 60
SUPPRESSION = re.compile(r"#\s*(noqa|type: ignore|pragma: no cover)(.*)$")
WITH_CODE = {
    "noqa": re.compile(r"^: [A-Z]+[0-9]+(, ?[A-Z]+[0-9]+)*\s+\S+"),
    "type: ignore": re.compile(r"^\[[a-z-]+(, ?[a-z-]+)*\]\s+#?\s*\S+"),
    "pragma: no cover": re.compile(r"^\s+\S+"),
}


def suppressions() -> list[tuple[str, str, str]]:
    found = []
    for path in python_files():
        if path.parent.name == "checks":
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if match := SUPPRESSION.search(line):
                found.append((f"{path.relative_to(ROOT)}:{number}", match[1], match[2]))
    return found


def test_every_suppression_has_code_and_reason() -> None:
    bare = [place for place, kind, rest in suppressions() if not WITH_CODE[kind].match(rest)]
    assert not bare


def test_suppressions_only_fall() -> None:
    assert len(suppressions()) <= MOST
