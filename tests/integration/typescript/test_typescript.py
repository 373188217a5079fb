"""The TypeScript client: its own tests, before a hostile server and before a real service."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

from tests.harness.clients.typescript import ROOT, SOURCE, built_client
from tests.harness.documents.readme import blocks

if TYPE_CHECKING:
    from pathlib import Path

    from tests.harness.clients.typescript import Node

pytestmark = pytest.mark.timeout(300)

GUIDE = ROOT / "docs/guide/typescript.md"
OPTIONS = {
    "noEmit": True,
    "strict": True,
    "target": "ES2022",
    "module": "NodeNext",
    "lib": ["ES2022", "DOM", "DOM.Iterable"],
    "types": [],
}

SOCKETS = """import { Client, type WebSocketClass } from "boxd-client";
const own: WebSocketClass = WebSocket;
export const clients = [new Client({ WebSocket }), new Client({ WebSocket: own, fetch })];
"""
"""The classes and functions of a browser are what a client takes."""


def examples(page: Path) -> list[str]:
    """Return the programs of a page that run without further packages."""
    programs = [block for block in blocks(page) if block.language == "ts"]
    return [block.text for block in programs if block.not_run is None]


def passes(report: str) -> None:
    """Check that tests ran and that none of them failed or was left out."""
    counts = {name: int(count) for name, count in re.findall(r"^# (\w+) (\d+)$", report, re.M)}
    assert counts["tests"] > 0, report
    assert (counts["fail"], counts["cancelled"], counts["todo"]) == (0, 0, 0), report


def test_the_client_survives_a_hostile_server(node: Node) -> None:
    passes(node.run("node", "--test", "--test-reporter=tap", "tests/unit"))


@pytest.mark.parametrize("name", ["account", "boxes"])
def test_the_client_works_before_a_service(node: Node, account: dict[str, str], name: str) -> None:
    file = f"tests/service/{name}.test.mjs"
    passes(node.run("node", "--test", "--test-reporter=tap", file, variables=account))


def test_the_programs_of_the_readme_run(node: Node, account: dict[str, str]) -> None:
    three_lines, stream = examples(SOURCE / "README.md")
    for text, shown in ((three_lines, "Linux dev"), (stream, "exit code 0")):
        (node.folder / "example.mjs").write_text(text)
        assert shown in node.run("node", "example.mjs", variables=account)


def test_the_programs_of_the_documentation_have_the_right_types(node: Node) -> None:
    texts = examples(SOURCE / "README.md") + examples(GUIDE)
    for number, text in enumerate(texts):
        (node.folder / f"example{number}.mts").write_text(text + "\nexport {};\n")
    (node.folder / "sockets.mts").write_text(SOCKETS)
    project = {"compilerOptions": OPTIONS, "include": ["*.mts"]}
    (node.folder / "tsconfig.json").write_text(json.dumps(project))
    node.run(str(built_client() / "tsc"))


def test_the_package_contains_only_what_its_users_need() -> None:
    package = json.loads((SOURCE / "package.json").read_text())
    assert package["files"] == ["dist", "README.md", "LICENSE"]
    assert "dependencies" not in package
    assert (SOURCE / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()
    version = re.search(r'VERSION = "(.+)"', (SOURCE / "src/protocol.ts").read_text())
    assert version is not None
    assert version[1] == package["version"]
