"""VI-3: what clients of two mounts and HTTP did at the same time could have been one by one."""

from __future__ import annotations

import os
import random
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import pytest

from tests.harness.simulation.histories import (
    MOVES,
    Call,
    Log,
    Names,
    Recorder,
    Register,
    is_linearisable,
    together,
)
from tests.model.views import RENAME_EXCHANGE, rename2

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from tests.harness.http.httpdrive import HttpDrive
    from tests.harness.mounts.drive import MountProcess
    from tests.harness.simulation.histories import Model
    from tests.plugins.figures import Figures

CALLS = 8
"""Calls of one client in one history."""
NAMES = ("a", "b", "c")
ON_MOUNTS = 4
"""Clients on mounts, the even ones on the first and the odd ones on the second."""


class OnMount:
    """A program on a mount."""

    def __init__(self, path: Path, client: int) -> None:
        self._path = path
        self._own = path / f".own{client}"

    def write(self, value: bytes) -> None:
        """Write beside, then rename over."""
        self._own.write_bytes(value)
        self._own.rename(self._path / "register")

    def read(self, name: str) -> bytes | None:
        """Open, read, close."""
        with suppress(FileNotFoundError):
            return (self._path / name).read_bytes()
        return None

    def add(self, name: str, value: bytes) -> bool:
        """Write beside, then link: the name appears with all bytes or not at all."""
        self._own.write_bytes(value)
        try:
            os.link(self._own, self._path / name)
        except FileExistsError:
            return False
        finally:
            self._own.unlink()
        return True

    def remove(self, name: str) -> bool:
        """unlink(2)."""
        try:
            (self._path / name).unlink()
        except FileNotFoundError:
            return False
        return True

    def rename(self, name: str, other: str) -> bool:
        """rename(2)."""
        try:
            (self._path / name).rename(self._path / other)
        except FileNotFoundError:
            return False
        return True

    def exchange(self, name: str, other: str) -> bool:
        """renameat2(2) with RENAME_EXCHANGE."""
        try:
            rename2(self._path / name, self._path / other, RENAME_EXCHANGE)
        except FileNotFoundError:
            return False
        return True

    def append(self, line: bytes) -> None:
        """One write(2) with O_APPEND; seen when close returns."""
        descriptor = os.open(self._path / "log", os.O_WRONLY | os.O_APPEND)
        try:
            os.write(descriptor, line)
        finally:
            os.close(descriptor)


class OverHttp:
    """A client of the API."""

    def __init__(self, drive: HttpDrive) -> None:
        self._drive = drive

    def write(self, value: bytes) -> None:
        """PUT."""
        self._drive.put("register", value)

    def read(self, name: str) -> bytes | None:
        """GET."""
        return self._drive.get(name)

    def add(self, name: str, value: bytes) -> bool:
        """PUT that may only create."""
        status = self._drive.ask("PUT", name, value, if_none_match="*").status
        assert status in (201, 412), status
        return status == 201

    def remove(self, name: str) -> bool:
        """DELETE."""
        return self._drive.delete(name)


Client: TypeAlias = OnMount | OverHttp
Work: TypeAlias = "Callable[[Recorder, int, Client, random.Random], Callable[[], None]]"


class Group:
    """Two clients on each mount and two over HTTP, with a fresh directory for each history."""

    def __init__(self, mounts: tuple[Path, Path], http: HttpDrive) -> None:
        self._mounts = mounts
        self._http = http

    def fresh(self, name: str) -> tuple[list[OnMount], list[OverHttp]]:
        """Clients that work in a new directory."""
        (self._mounts[0] / name).mkdir()
        for file in ("register", "log"):
            (self._mounts[0] / name / file).touch()
        on_mounts = [OnMount(self._mounts[n % 2] / name, n) for n in range(ON_MOUNTS)]
        below = self._http.below(name)
        return on_mounts, [OverHttp(below) for _ in range(2)]

    def remove(self, name: str) -> None:
        """Removes the directory of a history."""
        assert self._http.delete(name)


@pytest.fixture
def group(mount: Callable[[], MountProcess], http_drive: HttpDrive) -> Group:
    """The clients."""
    return Group((mount().path, mount().path), http_drive)


def shown(history: list[Call]) -> str:
    """A history for a failing test."""
    start = history[0].began
    return "\n".join(
        f"{one.client} {one.verb} {one.args!r:.40} -> {one.answer!r:.200}"
        f" [{(one.began - start) / 1e6:.2f} .. {(one.ended - start) / 1e6:.2f} ms]"
        for one in history
    )


def whole(value: bytes | None) -> object:
    """The token that a register's value consists of; something else when it is torn."""
    if not value:
        return value
    token = value[: value.index(b" ") + 1]
    return token if value == token * (len(value) // len(token)) else ("torn", len(value))


def replace_and_read(
    recorder: Recorder, client: int, side: Client, rng: random.Random
) -> Callable[[], None]:
    """Work on a register."""

    def work() -> None:
        for number in range(CALLS):
            if rng.random() < 0.5:
                token = b"%d-%d " % (client, number)
                value = token * rng.choice((1, 50, 30_000))
                recorder.call(client, "write", (token,), partial(side.write, value))
            else:
                recorder.call(client, "read", (), lambda: whole(side.read("register")))

    return work


def lines(value: bytes | None) -> object:
    """The tokens of a log's lines; something else when one is torn."""
    tokens = []
    for line in (value or b"").splitlines(keepends=True):
        token = line.partition(b" ")[0]
        if not line.endswith(b"\n") or line != token + b" " * (len(line) - len(token) - 1) + b"\n":
            return ("torn", line[:40], len(line))
        tokens.append(token)
    return tuple(tokens)


def without_known_gap(history: list[Call]) -> list[Call]:
    """Without reads beside any other call of the same host.

    The kernel may receive the size of the file for the other call between the bytes and the size
    of the read; see docs/reference/known-gaps.md. Reads over HTTP remain, and reads of a host that
    makes no other call at that moment. So what two programs of one host read beside each other is
    unproven here; the kind "append alone" has one program on each host, and leaves out nothing.
    """

    def beside(read: Call) -> bool:
        return read.client < ON_MOUNTS and any(
            call.client < ON_MOUNTS
            and call.client != read.client
            and call.client % 2 == read.client % 2
            and call.began < read.ended
            and read.began < call.ended
            for call in history
        )

    return [call for call in history if call.verb != "read" or not beside(call)]


def append_and_read(
    recorder: Recorder, client: int, side: Client, rng: random.Random
) -> Callable[[], None]:
    """Work on a log; HTTP only reads."""

    def work() -> None:
        for number in range(CALLS):
            if isinstance(side, OnMount) and rng.random() < 0.6:
                token = b"%d-%d" % (client, number)
                line = token + b" " * rng.choice((1, 10, 500)) + b"\n"
                recorder.call(client, "append", (token,), partial(side.append, line))
            else:
                recorder.call(client, "read", (), lambda: lines(side.read("log")))

    return work


def name_and_rename(
    recorder: Recorder, client: int, side: Client, rng: random.Random
) -> Callable[[], None]:
    """Work on names."""
    verbs = ("add", "add", "remove", "rename", "read", "read")
    return on_names(recorder, client, side, rng, NAMES, verbs)


def name_and_exchange(
    recorder: Recorder, client: int, side: Client, rng: random.Random
) -> Callable[[], None]:
    """Work on few names that are seldom absent, so that most exchanges meet another one."""
    verbs = ("add", "add", "exchange", "exchange", "exchange", "rename", "read", "read")
    return on_names(recorder, client, side, rng, NAMES[:2], verbs)


def on_names(
    recorder: Recorder,
    client: int,
    side: Client,
    rng: random.Random,
    names: Sequence[str],
    verbs: Sequence[str],
) -> Callable[[], None]:
    """Work on these names by these calls, as far as the client has them."""

    def work() -> None:
        for number in range(CALLS):
            name, value = rng.choice(names), b"%d-%d" % (client, number)
            verb = rng.choice(verbs)
            if verb == "add":
                recorder.call(client, verb, (name, value), partial(side.add, name, value))
            elif verb == "remove":
                recorder.call(client, verb, (name,), partial(side.remove, name))
            elif verb in MOVES and isinstance(side, OnMount):
                other = rng.choice([one for one in names if one != name])
                move = side.rename if verb == "rename" else side.exchange
                recorder.call(client, verb, (name, other), partial(move, name, other))
            else:
                recorder.call(client, "read", (name,), partial(side.read, name))

    return work


HOSTS = {client: client % 2 for client in range(ON_MOUNTS)}
"""Of clients on mounts; others have no kernel."""
WORK: dict[str, tuple[Work, Callable[[Sequence[Call]], Model]]] = {
    "register": (replace_and_read, lambda _: Register()),
    "append": (append_and_read, Log),
    "append alone": (append_and_read, Log),
    "rename": (name_and_rename, lambda _: Names(HOSTS)),
    "exchange": (name_and_exchange, lambda _: Names(HOSTS)),
}


@pytest.mark.parametrize("kind", list(WORK))
@pytest.mark.promise("V1")
@pytest.mark.promise("V4")
@pytest.mark.figure("VI-3")
@pytest.mark.timeout(300)
def test_histories_are_linearisable(group: Group, kind: str, figures: Figures) -> None:
    begin, model_of = WORK[kind]
    for number in figures(ci=20, long=1000):
        name = f"h{number}"
        on_mounts, over_http = group.fresh(name)
        if kind == "append alone":
            on_mounts = on_mounts[:2]
        recorder = Recorder()
        clients: list[Client] = [*on_mounts, *over_http]
        together(
            [
                begin(recorder, client, side, random.Random(f"{number} {client}"))
                for client, side in enumerate(clients)
            ]
        )
        history = Names.looks(recorder.history())
        if kind == "append":
            history = without_known_gap(history)
        if not is_linearisable(history, model_of(history)):
            pytest.fail(shown(history))
        group.remove(name)


def test_the_check_refuses_what_cannot_be() -> None:
    old = [call(0, "write", (b"1",), None, 0), call(1, "read", (), b"", 10)]
    assert not is_linearisable(old, Register()), "a stale read"
    overlap = [call(0, "write", (b"1",), None, 0), call(1, "read", (), b"", 3)]
    assert is_linearisable(overlap, Register())
    two = [call(0, "append", (b"x",), None, 0), call(0, "append", (b"y",), None, 10)]
    for answer in ((b"y", b"x"), (b"x",), (b"x", b"y", b"z"), ("torn", b"x", 1)):
        assert not of_log([*two, call(1, "read", (), answer, 20)]), answer
    assert of_log([*two, call(1, "read", (), (b"x", b"y"), 20)])
    assert of_log([two[0], call(1, "read", (), (b"x",), 6), two[1]])
    assert of_log([two[0], call(1, "read", (), (), 0), two[1]])
    reads = [call(1, "read", (), (b"x", b"y"), 12), call(2, "read", (), (b"y", b"x"), 12)]
    assert not of_log([*two, *reads]), "two orders"
    twice = [call(n, "add", ("a", n), True, 0) for n in range(2)]
    assert not is_linearisable(twice, Names()), "two winners"
    cut = call(2, "read", (), ("torn", b"", 1), 12)
    assert without_known_gap([two[1], cut]) == [two[1]]
    beside = call(0, "read", (), (), 13)
    assert without_known_gap([cut, beside]) == [], "two reads of one host"
    for client, at in ((3, 12), (5, 12), (2, 16)):
        elsewhere = call(client, "read", (), (), at)
        assert without_known_gap([two[1], elsewhere]) == [two[1], elsewhere]
    back = [
        call(0, "write", (b"1",), None, 0),
        call(0, "write", (b"2",), None, 10),
        call(1, "read", (), b"2", 11),
        call(1, "read", (), b"1", 17),
    ]
    assert not is_linearisable(back, Register()), "going back in time"


def call(client: int, verb: str, args: tuple[object, ...], answer: object, at: int) -> Call:
    """A call that takes five moments."""
    return Call(client, verb, args, answer, at, at + 5)


def of_log(history: list[Call]) -> bool:
    """Return whether an order explains the history of a log."""
    return is_linearisable(history, Log(history))


FILLED = [call(0, "add", ("a", 1), True, 0), call(0, "add", ("b", 2), True, 10)]
READ = [call(0, "read", ("a",), 1, 40), call(0, "read", ("b",), 2, 50)]
SWAPPED = [call(0, "read", ("a",), 2, 40), call(0, "read", ("b",), 1, 50)]
HOME = {0: 0, 1: 1, 2: 0}
"""Clients 0 and 2 are on one host."""


def explained(*calls: Call) -> bool:
    """Whether the history is what clients on the hosts of HOME can see."""
    return is_linearisable(Names.looks(calls), Names(HOME))


@pytest.mark.parametrize("other", [("a", "b"), ("b", "a")])
def test_an_exchange_is_excused_by_one_of_the_same_names_on_another_host(
    other: tuple[str, str],
) -> None:
    one = call(0, "exchange", ("a", "b"), True, 20)
    meanwhile = call(1, "exchange", other, True, 22)
    assert explained(*FILLED, one, meanwhile, *READ)
    assert explained(*FILLED, one, meanwhile, *SWAPPED)
    assert not explained(*FILLED, one, *READ), "nobody moved a file"
    later = call(1, "exchange", other, True, 30)
    assert not explained(*FILLED, one, later, *SWAPPED), "one after the other"
    here = call(2, "exchange", other, True, 22)
    assert not explained(*FILLED, one, here, *SWAPPED), "its kernel locks the directory"
    lost = [call(0, "read", ("a",), 2, 40), call(0, "read", ("b",), None, 50)]
    assert not explained(*FILLED, one, meanwhile, *lost)


def test_an_exchange_is_not_excused_by_other_names() -> None:
    third = call(1, "add", ("c", 3), True, 0)
    one = call(0, "exchange", ("a", "b"), True, 20)
    meanwhile = call(1, "exchange", ("b", "c"), True, 22)
    unmoved = [call(1, "read", ("c",), 2, 40), call(0, "read", ("a",), 1, 45)]
    assert not explained(*FILLED, third, one, meanwhile, *unmoved)
    by_way = [
        Call(1, "rename", ("a", "c"), True, 20, 21),
        Call(1, "rename", ("c", "b"), True, 22, 23),
    ]
    moved = [call(0, "read", ("b",), 1, 40), call(0, "read", ("a",), None, 45)]
    assert explained(*FILLED, one, *by_way, *moved), "the file came by way of a third name"
    halfway = [call(0, "read", ("c",), 1, 40), call(0, "read", ("b",), 2, 45)]
    assert not explained(*FILLED, one, by_way[0], *halfway)


def test_a_rename_is_excused_by_an_equal_one_on_another_host() -> None:
    only = FILLED[0]
    moved = [call(0, "read", ("b",), 1, 40), call(0, "read", ("a",), None, 45)]
    one = call(0, "rename", ("a", "b"), True, 20)
    equal = call(1, "rename", ("a", "b"), True, 22)
    assert explained(only, one, equal, *moved)
    assert not explained(only, one, call(1, "rename", ("a", "b"), True, 30), *moved)
    assert not explained(only, one, call(2, "rename", ("a", "b"), True, 22), *moved)
    refused = call(2, "rename", ("a", "b"), False, 22)
    assert explained(only, one, refused, *moved)
    assert not explained(only, one, call(1, "rename", ("a", "c"), True, 22), *moved)


def test_a_call_that_failed_uses_no_excuse_of_its_host() -> None:
    one = call(0, "exchange", ("a", "b"), True, 20)
    meanwhile = call(1, "exchange", ("a", "b"), True, 22)
    refused = call(2, "rename", ("a", "b"), False, 23)
    assert not explained(*FILLED, one, meanwhile, refused, *READ), "the old name was there"
    late = Call(2, "add", ("a", 3), False, 25, 26)
    between = Call(1, "exchange", ("a", "b"), True, 21, 24)
    back = Call(1, "exchange", ("a", "b"), True, 27, 28)
    assert explained(*FILLED, one, between, late, back, *READ[::-1])
