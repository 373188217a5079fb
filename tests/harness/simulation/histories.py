"""Histories of concurrent calls, and a search for one order that explains every answer.

A history is linearisable if one order of its calls contradicts neither real time nor the answers.
Real time: a call that returned before the start of another comes first. Answers: each is the
model's answer in that order. The search is the usual one. It tries each call that no unfinished
call precedes, and remembers which (set of done calls, state) it has tried.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping, Sequence

DEADLINE = 60.0
"""Timeout of all threads of one history, in seconds."""

Answer: TypeAlias = object

MOVES = ("rename", "exchange")
"""Calls of `Names` with two names, which a kernel looks up in sequence."""


@dataclass(frozen=True, slots=True)
class Call:
    """One finished call: client, verb, arguments, answer, start and end (monotonic ns)."""

    client: int
    verb: str
    args: tuple[object, ...]
    answer: Answer
    began: int
    ended: int


class Model(Protocol):
    """The sequential meaning of the calls."""

    def start(self) -> Hashable:
        """Return the state before the first call."""
        ...

    def steps(self, state: Hashable, call: Call) -> Sequence[Hashable]:
        """Return the possible states after a call, or none if its answer is impossible."""
        ...


class Recorder:
    """Collects the calls of many threads."""

    def __init__(self) -> None:
        self._calls: list[Call] = []

    def call(
        self, client: int, verb: str, args: tuple[object, ...], work: Callable[[], Answer]
    ) -> Answer:
        """Make a call and record it. The answer of a call that raises OSError is its errno."""
        began = time.monotonic_ns()
        try:
            answer = work()
        except OSError as error:
            answer = ("errno", error.errno)
        ended = time.monotonic_ns()
        self._calls.append(Call(client, verb, args, answer, began, ended))
        return answer

    def history(self) -> list[Call]:
        """Return all calls in the order of their start."""
        return sorted(self._calls, key=lambda call: call.began)


def together(workers: Sequence[Callable[[], None]]) -> None:
    """Run all workers at once, each in a thread; raise the error of the first failed one."""
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
    """Return whether an order of the calls explains the history.

    The time is exponential only in the concurrency.
    """
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
            after = model.steps(state, history[number])
            todo += [(done | 1 << number, one) for one in after]
    return False


class Register:
    """Implements `Model`: one file that is replaced entirely, by write(value), read() -> value."""

    def start(self) -> Hashable:
        return b""

    def steps(self, state: Hashable, call: Call) -> Sequence[Hashable]:
        if call.verb == "write":
            return [call.args[0]] if call.answer is None else []
        return [state] if call.answer == state else []


class Log:
    """Implements `Model`: one file that only grows, by append(line), read() -> all lines.

    The longest read of the history fixes the order of the appends in it, so no other order is
    tried. No read shows the appends after it, so their order makes no difference. The state is the
    number of lines.
    """

    def __init__(self, history: Sequence[Call]) -> None:
        answers = [call.answer for call in history if call.verb == "read"]
        reads = [answer for answer in answers if isinstance(answer, tuple)]
        self._order: tuple[object, ...] = max(reads, key=len, default=())

    def start(self) -> Hashable:
        return 0

    def steps(self, state: Hashable, call: Call) -> Sequence[Hashable]:
        assert isinstance(state, int)
        beyond = state >= len(self._order)
        if call.verb == "append":
            follows = beyond or self._order[state] == call.args[0]
            return [state + 1] if call.answer is None and follows else []
        shown = state <= len(self._order) and call.answer == self._order[:state]
        return [state] if shown else []


@dataclass(frozen=True, slots=True)
class Look:
    """A rename or exchange in progress, with the file that its kernel found under the old name."""

    call: int
    host: int
    file: object


@dataclass(frozen=True, slots=True)
class Directory:
    """Files by name, and the renames in progress."""

    files: frozenset[tuple[object, object]] = frozenset()
    looks: frozenset[Look] = frozenset()


class Names:
    """Implements `Model`: a directory of whole files, with an exception for rename(2).

    Calls: add(name, file) only if absent, remove(name), rename(old, new), exchange(old, new),
    read(name). No two files are equal.

    The exception: a kernel looks up the old name first and the new one later. If both are the same
    file, it answers 0 and does not change the file. Between the two moments no other call of the
    same host changes the directory, because the kernel locks it. `looks` splits renames
    accordingly.
    """

    def __init__(self, hosts: Mapping[int, int] | None = None) -> None:
        """`hosts` has the host of each client; without it each client has its own host."""
        self._hosts = hosts or {}

    @staticmethod
    def looks(history: Sequence[Call]) -> list[Call]:
        """Return the history with a call `look(old)` before each successful rename.

        Both have the times of the rename, and its place in the history.
        """
        found: list[Call] = []
        for number, call in enumerate(history):
            if call.verb in MOVES and call.answer is True:
                found.append(replace(call, verb="look", args=(call.args[0], number)))
                found.append(replace(call, args=(*call.args, number)))
            else:
                found.append(call)
        return found

    def start(self) -> Hashable:
        return Directory()

    def steps(self, state: Hashable, call: Call) -> Sequence[Hashable]:
        assert isinstance(state, Directory)
        files = dict(state.files)
        host = self._hosts.get(call.client, call.client)
        if call.verb == "read":
            return [state] if call.answer == files.get(call.args[0]) else []
        own = next((look for look in state.looks if look.host == host), None)
        if call.verb == "look":
            name, number = call.args
            assert isinstance(number, int)
            look = Look(number, host, files.get(name))
            return [replace(state, looks=state.looks | {look})] if own is None else []
        begun = own if own is not None and _is_end(call, own) else None
        if call.answer is True and own is not None and begun is None:
            return []
        after: list[Hashable] = []
        looks = state.looks - {begun}
        if begun is not None and begun.file is not None and files.get(call.args[1]) == begun.file:
            after.append(replace(state, looks=looks))
        if _done(files, call) is call.answer:
            after.append(Directory(frozenset(files.items()), looks))
        return after


def _is_end(call: Call, look: Look) -> bool:
    """Return whether a call is the rename of this look. A failed call has no look."""
    return call.answer is True and call.verb in MOVES and call.args[-1] == look.call


def _done(files: dict[object, object], call: Call) -> bool:
    """Apply a change if it succeeds; return whether it does."""
    name, *more = call.args
    if call.verb == "add":
        allowed = name not in files
        if allowed:
            files[name] = more[0]
    elif call.verb == "remove":
        allowed = files.pop(name, None) is not None
    elif call.verb == "rename":
        allowed = name in files
        if allowed:
            files[more[0]] = files.pop(name)
    else:
        assert call.verb == "exchange", call.verb
        allowed = name in files and more[0] in files
        if allowed:
            files[name], files[more[0]] = files[more[0]], files[name]
    return allowed
