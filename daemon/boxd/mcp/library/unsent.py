"""Budget shares of results that are done and not sent yet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from types import TracebackType

    from boxd.boxes.limits.budgets.results import Share


class Unsent:
    """The shares of one connection, by request.

    The end of the context releases all shares. A share that is added later is released at once.
    """

    def __init__(self) -> None:
        self._shares: dict[str | int | None, Share] = {}
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> None:
        self._closed = True
        self.release_all()

    def keep(self, number: str | int | None, share: Share) -> None:
        """Keep the share of a request until `release`, which an answer or its absence calls."""
        self.release(number)
        if self._closed:
            share.release()
        else:
            self._shares[number] = share

    def release(self, number: str | int | None) -> None:
        """Release the share of one request."""
        if (share := self._shares.pop(number, None)) is not None:
            share.release()

    def release_all(self) -> None:
        """Release the shares of all requests."""
        for number in list(self._shares):
            self.release(number)
