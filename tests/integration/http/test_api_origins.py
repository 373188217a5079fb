"""Pages of listed origins use the API: preflights, and headers that pages may read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.harness.authorisation.house import estate
from tests.harness.http.rawhttp import Request

if TYPE_CHECKING:
    from boxd.http.routes.route import Route
    from tests.harness.authorisation.house import Furnished
    from tests.harness.http.rawhttp import Answer

LISTED, OTHER = "https://app.test", "https://other.test"
PROXY = "/v1/boxes/{box}/proxy/"


async def preflight(house: Furnished, path: str, method: str, origin: str) -> Answer:
    """What a browser asks before a request of a page."""
    headers = (("Origin", origin), ("Access-Control-Request-Method", method))
    return await house.ask(Request("OPTIONS", path, headers))


def path_of(route: Route) -> str:
    """A path of the route. A preflight does nothing, so any names will do."""
    return "/".join("1" if part.startswith("{") else part for part in route.path.split("/"))


async def test_every_route_but_ports_answers_preflights_of_listed_origins() -> None:
    async with estate() as owned:
        house = await owned.house()
        before = await house.picture()
        for route in house.api.routes:
            if route.path.startswith(PROXY):
                continue
            for method in set(route.methods) - {"OPTIONS"}:
                answer = await preflight(house, path_of(route), method, LISTED)
                assert answer.status == 204, (route.path, method)
                assert answer.headers["access-control-allow-origin"] == LISTED
                assert method in answer.headers["access-control-allow-methods"].split(", ")
                assert "idempotency-key" in answer.headers["access-control-allow-headers"].lower()
                assert "access-control-allow-credentials" not in answer.headers
                refused = await preflight(house, path_of(route), method, OTHER)
                assert "access-control-allow-origin" not in refused.headers
        assert await house.picture() == before


async def test_answers_and_refusals_name_the_listed_origin_alone() -> None:
    async with estate() as owned:
        house = await owned.house()
        key = house.alice.keys["account"]
        for credential, status in ((key, 200), ("svc_no", 401)):
            for origin, named in ((LISTED, LISTED), (OTHER, None)):
                headers = (("Origin", origin), ("Authorization", f"Bearer {credential}"))
                answer = await house.ask(Request("GET", "/v1/boxes", headers))
                assert answer.status == status
                assert answer.headers.get("access-control-allow-origin") == named
                exposed = answer.headers.get("access-control-expose-headers", "")
                assert ("X-Request-Id" in exposed) is (named is not None)


async def test_ports_answer_for_themselves() -> None:
    async with estate() as owned:
        house = await owned.house()
        path = f"/v1/boxes/web/proxy/{house.app}/"
        headers = (("Origin", LISTED), ("X-Api-Key", house.alice.keys["account"]))
        answer = await house.ask(Request("GET", path, headers))
        assert answer.status == 200
        assert "access-control-allow-origin" not in answer.headers
