"""The page of request paths lists the files that the requests pass."""

from __future__ import annotations

from tests.harness.documents.request_paths import PAGE, measure, measured_part, section


async def test_the_page_lists_the_files_of_the_requests() -> None:
    measured = section(await measure())
    listed = measured_part(PAGE.read_text(encoding="utf-8"))
    assert listed == measured, "run python -m tests.harness.documents.request_paths --write"
