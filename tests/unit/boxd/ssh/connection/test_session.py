"""Isolation of a channel's failure from other channels."""

from __future__ import annotations

from boxd.ssh.connection.session import guarded
from tests.harness.logs import provoked


class ChannelOwner:
    """The owner of a channel that counts its aborts."""

    def __init__(self) -> None:
        self.aborted = 0

    def abort(self) -> None:
        self.aborted += 1

    @guarded("fallback")
    def divide(self, number: int) -> str:
        """Act as a callback that may fail."""
        return str(1 // number)


def test_an_exception_in_a_callback_ends_only_its_channel() -> None:
    owner = ChannelOwner()
    assert owner.divide(1) == "1"
    assert owner.aborted == 0
    with provoked("boxd.ssh.connection.session") as log:
        assert owner.divide(0) == "fallback"
    assert owner.aborted == 1
    (line,) = log
    assert "ChannelOwner.divide" in line
    assert "ZeroDivisionError" in line
