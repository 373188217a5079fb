"""Histories of concurrent calls, and whether one order of them explains every answer.

A history is linearisable when its calls can be put in one order that contradicts neither real
time (a call that returned before another began comes first) nor the answers (each is what the
model answers in that order). The search is the usual one: try each call that no unfinished one
precedes, remember which (set of done calls, state) was tried already.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

DEADLINE = 60.0
"""Seconds for all threads of one history."""

Answer: TypeAlias = object


@dataclass(frozen=True, slots=True)
class Call:
    """One finished call: who, what, its answer, when it began and ended (monotonic ns)."""

    client: int
    verb: str
    args: tuple[object, ...]
    answer: Answer
    began: int
    ended: int


class Model(Protocol):
    """What the calls mean, one after the other."""

    def start(self) -> Hashable:
        """The state before the first call."""
        ...

    def step(self, state: Hashable, call: Call) -> Hashable | None:
        """The state after a call, None when it cannot have answered so."""
        ...


class Recorder:
    """Collects the calls of many threads."""

    def __init__(self) -> None:
        self._calls: list[Call] = []

    def call(
        self, client: int, verb: str, args: tuple[object, ...], work: Callable[[], Answer]
    ) -> Answer:
        """Makes a call and writes it down; an OSError is an answer: its errno."""
        began = time.monotonic_ns()
        try:
            answer = work()
        except OSError as error:
            answer = ("errno", error.errno)
        ended = time.monotonic_ns()
        self._calls.append(Call(client, verb, args, answer, began, ended))
        return answer

    def history(self) -> list[Call]:
        """All calls, by their beginning."""
        return sorted(self._calls, key=lambda call: call.began)


def together(workers: Sequence[Callable[[], None]]) -> None:
    """Runs all at once, each in a thread; raises what the first failing one raised."""
    errors: list[BaseException] = []
    barrier = threading.Barrier(len(workers))

    def run(work: Callable[[], None]) -> None:
        try:
            barrier.wait(DEADLINE)
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(work,)) for work in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE)
    assert not any(thread.is_alive() for thread in threads), "a call does not return"
    if errors:
        raise errors[0]


def is_linearisable(history: Sequence[Call], model: Model) -> bool:
    """Whether an order of the calls explains the history. Exponential only in the concurrency."""
    everything = (1 << len(history)) - 1
    tried: set[tuple[int, Hashable]] = set()
    todo: list[tuple[int, Hashable]] = [(0, model.start())]
    while todo:
        done, state = todo.pop()
        if done == everything:
            return True
        if (done, state) in tried:
            continue
        tried.add((done, state))
        left = [number for number in range(len(history)) if not done >> number & 1]
        first_end = min(history[number].ended for number in left)
        for number in reversed(left):
            if history[number].began > first_end:
                continue
            after = model.step(state, history[number])
            if after is not None:
                todo.append((done | 1 << number, after))
    return False


class Register:
    """One file that is replaced as a whole: write(value), read() -> value."""

    def start(self) -> Hashable:
        """Nothing was written."""
        return b""

    def step(self, state: Hashable, call: Call) -> Hashable | None:
        """See Model."""
        if call.verb == "write":
            return call.args[0] if call.answer is None else None
        return state if call.answer == state else None


class Log:
    """One file that is only appended to: append(line), read() -> all lines."""

    def start(self) -> Hashable:
        """Empty."""
        return ()

    def step(self, state: Hashable, call: Call) -> Hashable | None:
        """See Model."""
        assert isinstance(state, tuple)
        if call.verb == "append":
            return (*state, call.args[0]) if call.answer is None else None
        return state if call.answer == state else None


class Names:
    """A directory of whole files: add(name, value) only if absent, remove, rename, read.

    A rename that another client makes at the same time may be answered without being done: the
    kernel finds the old name, then the new one, and between the two they become one file, which
    rename(2) leaves alone. `twins` marks such calls.
    """

    @staticmethod
    def twins(history: Sequence[Call]) -> list[Call]:
        """The history with `twin` for a rename that overlaps an equal one that was done."""
        done = [call for call in history if call.verb == "rename" and call.answer is True]
        twin = {
            call
            for call in done
            for other in done
            if other is not call
            and other.args == call.args
            and other.began < call.ended
            and call.began < other.ended
        }
        return [replace(call, verb="twin") if call in twin else call for call in history]

    def start(self) -> Hashable:
        """Empty."""
        return frozenset()

    def step(self, state: Hashable, call: Call) -> Hashable | None:
        """See Model."""
        assert isinstance(state, frozenset)
        names: dict[object, object] = dict(state)
        name = call.args[0]
        if call.verb == "read":
            return state if call.answer == names.get(name) else None
        if call.verb == "add":
            allowed = name not in names
            names[name] = call.args[1]
        elif call.verb == "remove":
            allowed = names.pop(name, None) is not None
        else:
            if call.verb == "twin" and name not in names and call.args[1] in names:
                return state
            allowed = name in names
            if allowed:
                names[call.args[1]] = names.pop(name)
        if call.answer is not allowed:
            return None
        return frozenset(names.items()) if allowed else state
