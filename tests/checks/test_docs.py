"""The documentation builds, its links resolve, and all names in it exist."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from boxd.boxes.limits.tier_limits import parse_tiers
from boxd.images.recipes import parse_flavors, parse_recipes
from boxd.workspaces.credentials import ExternalStore
from scripts.reference_pages import NOTE, pages
from tests.checks import module_names
from tests.checks.source import ROOT
from tests.harness.documents.readme import blocks
from tests.harness.documents.readme import pages as run_pages

if TYPE_CHECKING:
    from pathlib import Path

DOCS = ROOT / "docs"
TOP = sorted(ROOT.glob("*.md"))
PAGES = sorted(DOCS.rglob("*.md"))
OPERATE = sorted((DOCS / "operate").glob("*.md"))
PROFILES = sorted((ROOT / "benchmarks").glob("*.md"))
DATA = {"json", "text", "toml"}
"""Languages of blocks without commands."""
MAX_README = 150
MAX_OVERVIEW = 4096
MAX_WORDS = 40
"""Maximum length of a sentence. Most sentences have fewer than 25 words."""
LINK = re.compile(r"\]\((?!https?://)([^)#\s]*)(?:#([\w-]+))?\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
CODE = re.compile(r"`([^`\n]+)`")
DECIDED = re.compile(
    r"Decided on or before 20\d\d-\d\d-\d\d, unless a row begins with its own date\."
)
PLACES = re.compile(
    r"(tests|daemon|scripts|benchmarks|docs|wrkfs|guest-agent|objectserver)/[\w/.-]+"
)


def test_generated_pages_are_fresh() -> None:
    stale = [name for name, text in pages().items() if (DOCS / name).read_text() != text]
    assert not stale, f"run make docs-pages: {stale}"


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(tmp_path)]
    done = subprocess.run(
        build,
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_page_is_in_the_navigation() -> None:
    navigation = set(re.findall(r": ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.M))
    assert navigation == {str(page.relative_to(DOCS)) for page in PAGES}


def test_what_is_read_first_stays_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= MAX_README
    for page in (ROOT / "ARCHITECTURE.md", DOCS / "internals/overview.md"):
        assert page.stat().st_size <= MAX_OVERVIEW, page


def test_every_page_of_decisions_says_when_they_were_made() -> None:
    for page in sorted((DOCS / "decisions").glob("*.md")):
        if page.name != "index.md":
            third = page.read_text().splitlines()[2]
            assert DECIDED.match(third), f"{page.name}: {third}"


@pytest.mark.parametrize("page", TOP, ids=lambda page: page.name)
def test_links_of_the_files_beside_the_site_lead_somewhere(page: Path) -> None:
    for name, anchor in LINK.findall(page.read_text()):
        target = page.parent / name if name else page
        assert target.exists(), f"{page.name} links {name}"
        if anchor:
            anchors = {_anchor(heading) for heading in HEADING.findall(target.read_text())}
            assert anchor in anchors, f"{page.name} links {name}#{anchor}"


@pytest.mark.parametrize(
    "page", [*TOP, *PAGES, *PROFILES], ids=lambda page: str(page.relative_to(ROOT))
)
def test_files_and_modules_that_a_page_names_are_there(page: Path) -> None:
    if page.name == "CHANGELOG.md":
        return
    for code in CODE.findall(page.read_text()):
        if module_names.is_dotted(code):
            assert module_names.exists(code), f"{page.name} names {code}"
        elif PLACES.fullmatch(code):
            assert any(ROOT.glob(code.rstrip("/"))), f"{page.name} names {code}"


@pytest.mark.parametrize(
    "name",
    [
        "boxd.boxes.timing.policy",
        "boxes.timing.policy",
        "timing.policy",
        "shared.vault",
        "authz.may",
        "boxd.config.Config",
        "wrkfs.fs.Filesystem.rename",
        "wrkfs.commit",
        "tests.checks.source.ROOT",
    ],
)
def test_names_of_modules_and_their_objects_are_recognised(name: str) -> None:
    assert module_names.is_dotted(name)
    assert module_names.exists(name)


@pytest.mark.parametrize(
    "name",
    [
        "boxes.output_budget",
        "backends.criu_cache",
        "timing.loops",
        "authz.might",
        "checks.source",
        "mcp.budget",
    ],
)
def test_a_name_of_nothing_does_not_exist(name: str) -> None:
    assert not module_names.exists(name)


@pytest.mark.parametrize(
    "page", [*TOP, *PAGES, *PROFILES], ids=lambda page: str(page.relative_to(ROOT))
)
def test_sentences_stay_short(page: Path) -> None:
    text = page.read_text()
    if page.name == "CHANGELOG.md" or text.startswith(NOTE):
        return
    text = CODE.sub("code", re.sub(r"```.*?```", "", text, flags=re.S))
    for paragraph in re.split(r"\n\s*\n|\n(?=\s*(?:[|#-]|\d+\.))|(?<!\\)\|", text):
        for sentence in re.split(r"(?<=[.:;?!])\s+", paragraph):
            assert len(sentence.split()) <= MAX_WORDS, sentence


def test_the_examples_for_operators_are_valid(tmp_path: Path) -> None:
    catalogs = ROOT / "daemon/boxd/images"
    images = parse_recipes((catalogs / "images.toml").read_text(), _example("images.md"))
    assert "data" in images.by_name
    flavors = parse_flavors((catalogs / "flavors.toml").read_text(), _example("flavors.md"))
    assert "huge" in flavors.by_name
    tiers = (ROOT / "daemon/boxd/boxes/limits/tiers.toml").read_text()
    assert "golden" in parse_tiers(tiers, _example("limits.md"))
    store = tmp_path / "store.json"
    store.touch(mode=0o600)
    store.write_text(json.dumps(json.loads(_example("own-postgresql-and-s3.md"))))
    assert list(ExternalStore.from_file(store).volumes) == ["vol-1", "vol-2"]


@pytest.mark.parametrize("page", OPERATE, ids=lambda page: page.name)
def test_commands_for_operators_are_run_or_marked(page: Path) -> None:
    for block in blocks(page):
        assert block.language in {"sh", *DATA}, f"{page.name}: {block.language or 'no language'}"
        if block.language == "sh" and page not in run_pages(ROOT):
            assert block.not_run, (
                f"{page.name}: a block that no test runs has no mark: {block.text}"
            )


def _example(page: str) -> str:
    """Return the only TOML or JSON example of an operator's page."""
    (example,) = re.findall(
        r"```(?:toml|json)\n(.*?)```", (DOCS / "operate" / page).read_text(), re.S
    )
    return str(example)


def _anchor(heading: str) -> str:
    return re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-")
