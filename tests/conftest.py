"""Fixtures shared by all tests. Each area adds a file in `tests/harness/` and names it here."""

pytest_plugins: list[str] = []
