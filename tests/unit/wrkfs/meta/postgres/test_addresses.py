"""Connection strings with several addresses."""

from __future__ import annotations

from pathlib import Path

import pytest

from wrkfs.config import ConfigError
from wrkfs.meta.postgres.addresses import addresses, place


@pytest.mark.parametrize(
    ("dsn", "expected"),
    [
        ("postgresql://u:p@h/d", [("h", 5432)]),
        ("postgresql://u:p@h:1,i:2,j/d", [("h", 1), ("i", 2), ("j", 5432)]),
        ("postgresql://u@/d?host=/run/a&port=1", [Path("/run/a/.s.PGSQL.1")]),
        ("postgresql://u@/d?host=/a,/b", [Path("/a/.s.PGSQL.5432"), Path("/b/.s.PGSQL.5432")]),
        ("postgresql://u@/d?host=h,i&port=1,2", [("h", 1), ("i", 2)]),
        ("postgresql://u@/d?host=h,i&port=7", [("h", 7), ("i", 7)]),
        ("postgresql:///d", [("localhost", 5432)]),
    ],
)
def test_every_address_stands_alone(dsn: str, expected: list[object]) -> None:
    assert [place(one) for one in addresses(dsn)] == expected


def test_the_rest_of_the_string_stays() -> None:
    assert addresses("postgresql://u:p%40@a,b/d?application_name=x") == (
        "postgresql://u:p%40@a/d?application_name=x",
        "postgresql://u:p%40@b/d?application_name=x",
    )


@pytest.mark.parametrize(
    "dsn", ["postgresql://u@/d?host=a,b,c&port=1,2", f"postgresql://{','.join('a' * 17)}/d"]
)
def test_nonsense_is_refused(dsn: str) -> None:
    with pytest.raises(ConfigError):
        addresses(dsn)
