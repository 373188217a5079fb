"""Shared code of the tests of the authorisation matrix.

It creates the credentials of the columns, the data that an answer must not contain, and the state
in which a row applies.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.harness.authorisation.matrix import COLUMNS, COOKIES

if TYPE_CHECKING:
    from tests.harness.authorisation.house import Furnished
    from tests.harness.authorisation.matrix import Row

MARKER = "marked content of "
"""The first words of each of Alice's files. No page of the service contains them."""


async def credential(house: Furnished, column: str, host: str | None = None) -> str:
    """Return the credential of a column.

    A cookie is for the app's port, at a preview `host` if given.
    """
    if column in COOKIES:
        port = house.app + (column == "cookie_other_port")
        return await house.cookie("ws1/web" if column == "cookie_other_box" else "web", port, host)
    told = COLUMNS[column]
    if told.whose is None:
        return told.key
    return house.shares["right"] if told.key == "share" else house.people[told.whose].keys[told.key]


async def begin(house: Furnished, row: Row) -> None:
    """Bring the boxes into the state that the row's request needs."""
    if row.get("before") == "suspend":
        for name in ("web", "ws1/web", "ws2/web"):
            await house.house.operations.boxes.suspend(house.alice.principal, name)


async def hidden(house: Furnished, column: str) -> list[str]:
    """Return what an answer to a column must not contain: ids of boxes, and content of files."""
    told = COLUMNS.get(column)
    boxes = await house.house.store.boxes(house.alice.owner)
    if told is None or told.refused or told.whose != "alice":
        return [*(box.id for box in boxes), MARKER]
    if told.key == "scoped":
        outside = [box.id for box in boxes if box.workspace != "ws1"]
        return [*outside, f"{MARKER}None", f"{MARKER}ws2"]
    return []
