"""Detection of the machine's sleep."""

from __future__ import annotations

from wrkfs.meta.postgres.sleep import LEAST, Sleep


class Clocks:
    """A machine: `pauses` are the seconds before each reading of a clock."""

    def __init__(self) -> None:
        self.waking, self.slept = 100.0, 5000.0
        self.pauses: list[float] = []

    def _pass(self) -> None:
        self.waking += self.pauses.pop(0) if self.pauses else 0.001

    def monotonic(self) -> float:
        """A clock that stops during sleep."""
        self._pass()
        return self.waking

    def boottime(self) -> float:
        """A clock that continues during sleep."""
        self._pass()
        return self.waking + self.slept


def test_sleep_is_told_once() -> None:
    clocks = Clocks()
    sleep = Sleep(clocks.monotonic, clocks.boottime)
    assert not sleep.has_been()
    clocks.slept += 0.5
    assert sleep.has_been()
    assert not sleep.has_been()
    clocks.slept += 3600.0
    assert sleep.has_been()


def test_a_process_that_stops_between_two_looks_has_not_slept() -> None:
    for place in range(4):
        clocks = Clocks()
        clocks.pauses = [1.0] * 3
        sleep = Sleep(clocks.monotonic, clocks.boottime)
        for _ in range(3):
            clocks.pauses = [0.0] * place + [60.0]
            assert not sleep.has_been()


def test_short_sleeps_add_up() -> None:
    clocks = Clocks()
    sleep = Sleep(clocks.monotonic, clocks.boottime)
    told = 0
    for _ in range(100):
        clocks.slept += LEAST / 4
        told += sleep.has_been()
    assert 15 <= told <= 25
