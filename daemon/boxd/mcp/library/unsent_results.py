"""Budget shares of results that are ready but not yet sent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from types import TracebackType

    from boxd.boxes.limits.budgets.results import Share


class UnsentResults:
    """The budget shares of one connection, by request id.

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

    def keep(self, request_id: str | int | None, share: Share) -> None:
        """Keep the share of a request until `release` is called for the request."""
        self.release(request_id)
        if self._closed:
            share.release()
        else:
            self._shares[request_id] = share

    def release(self, request_id: str | int | None) -> None:
        """Release the share of one request, because it was answered or needs no answer."""
        if (share := self._shares.pop(request_id, None)) is not None:
            share.release()

    def release_all(self) -> None:
        """Release the shares of all requests."""
        for request_id in list(self._shares):
            self.release(request_id)
