"""The connection string of a volume, made from the superuser's; a database that goes away."""

from __future__ import annotations

from urllib.parse import parse_qs, urlsplit

import asyncpg
import pytest

from boxd.errors import Unavailable
from boxd.secret import Secret
from boxd.workspaces.provision import Provisioner

VOLUME = "v" + "0" * 32


@pytest.mark.parametrize(
    "admin",
    [
        "postgresql://postgres:canary@db:5432/meta?sslmode=require",
        "postgresql://db:5432/meta?user=postgres&password=canary&sslmode=require",
        "postgresql://db:5432/meta?sslmode=require&passfile=%2Fcanary&sslkey=%2Fcanary"
        "&sslcert=%2Fcanary&sslpassword=canary&options=canary&service=canary",
    ],
)
def test_a_volume_learns_where_the_database_is_and_nothing_of_the_superuser(admin: str) -> None:
    dsn = Provisioner(admin).dsn(VOLUME, Secret("own"))
    assert "canary" not in dsn
    assert "=postgres" not in dsn
    assert dsn == f"postgresql://{VOLUME}:own@db:5432/meta?sslmode=require"


def test_the_place_in_parameters_is_kept() -> None:
    admin = "postgresql://boxd@/boxd?host=%2Frun%2Fa%20b&port=5433&sslrootcert=%2Fca.pem"
    parts = urlsplit(Provisioner(admin).dsn(VOLUME, Secret("own")))
    assert (parts.username, parts.password, parts.path) == (VOLUME, "own", "/boxd")
    assert parse_qs(parts.query) == {
        "host": ["/run/a b"],
        "port": ["5433"],
        "sslrootcert": ["/ca.pem"],
    }


@pytest.mark.parametrize(
    "goodbye",
    [asyncpg.InterfaceError, asyncpg.InternalClientError, asyncpg.ConnectionDoesNotExistError],
)
async def test_a_database_that_goes_away_half_way_is_unavailable(
    goodbye: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Leaving:
        """A connection whose server restarts."""

        async def fetch(self, _query: str) -> list[object]:
            raise goodbye("the server goes down")

        async def close(self, *, timeout: float) -> None:
            raise BrokenPipeError(timeout)

    async def connect(*_: object, **_options: object) -> Leaving:
        return Leaving()

    monkeypatch.setattr(asyncpg, "connect", connect)
    with pytest.raises(Unavailable, match="the metadata database"):
        await Provisioner("postgresql://db/meta").names()
