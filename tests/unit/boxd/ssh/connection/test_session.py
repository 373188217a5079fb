"""What keeps one channel's failure from the others."""

from __future__ import annotations

from boxd.ssh.connection.session import guarded
from tests.harness.logs import provoked


class Owner:
    """Owns a channel that can be ended."""

    def __init__(self) -> None:
        self.aborted = 0

    def abort(self) -> None:
        self.aborted += 1

    @guarded("fallback")
    def divide(self, number: int) -> str:
        """A callback."""
        return str(1 // number)


def test_an_exception_of_a_callback_ends_its_channel_only() -> None:
    owner = Owner()
    assert owner.divide(1) == "1"
    assert owner.aborted == 0
    with provoked("boxd.ssh.connection.session") as log:
        assert owner.divide(0) == "fallback"
    assert owner.aborted == 1
    (line,) = log
    assert "Owner.divide" in line
    assert "ZeroDivisionError" in line
