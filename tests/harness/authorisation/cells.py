"""What the tests of the authorisation matrix have in common: credentials of columns, what an answer
may not hold, and the state in which a row means something."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.harness.authorisation.matrix import COLUMNS, COOKIES

if TYPE_CHECKING:
    from tests.harness.authorisation.house import Furnished
    from tests.harness.authorisation.matrix import Row

MARKER = "marked content of "
"""How the content of each of Alice's files begins; no page of the service has these words."""


async def credential(house: Furnished, column: str, host: str | None = None) -> str:
    """What a column shows. Cookies are of the port of the app, at a preview `host` or at none."""
    if column in COOKIES:
        port = house.app + (column == "cookie_other_port")
        return await house.cookie("ws1/web" if column == "cookie_other_box" else "web", port, host)
    told = COLUMNS[column]
    if told.whose is None:
        return told.key
    return house.shares["right"] if told.key == "share" else house.people[told.whose].keys[told.key]


async def begin(house: Furnished, row: Row) -> None:
    """Brings the boxes into the state in which the row's request means something."""
    if row.get("before") == "suspend":
        for name in ("web", "ws1/web", "ws2/web"):
            await house.house.operations.boxes.suspend(house.alice.principal, name)


async def hidden(house: Furnished, column: str) -> list[str]:
    """What an answer to a column may not hold: ids of boxes, and content of files."""
    told = COLUMNS.get(column)
    boxes = await house.house.store.boxes(house.alice.owner)
    if told is None or told.refused or told.whose != "alice":
        return [*(box.id for box in boxes), MARKER]
    if told.key == "scoped":
        outside = [box.id for box in boxes if box.workspace != "ws1"]
        return [*outside, f"{MARKER}None", f"{MARKER}ws2"]
    return []
