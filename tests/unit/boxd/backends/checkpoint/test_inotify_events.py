"""Unread events of inotify: how long they count, and what the kernel says of them."""

from __future__ import annotations

import ctypes
import os
from typing import TYPE_CHECKING

from boxd.backends.checkpoint import inotify_events
from boxd.backends.checkpoint.inotify_events import PATIENCE, Notifications

if TYPE_CHECKING:
    from pathlib import Path

ONE, OTHER = (41, 3), (42, 3)


class Watch:
    """A clock that a test turns."""

    def __init__(self) -> None:
        self.time = 0.0
        self.seen = Notifications(lambda: self.time)

    def after(self, seconds: float, sizes: dict[tuple[int, int], int]) -> tuple[int, int] | None:
        """What counts some time later."""
        self.time += seconds
        return self.seen.waiting("a", sizes)


def test_unread_events_count_until_patience_ends() -> None:
    watch = Watch()
    assert watch.after(0, {}) is None
    assert watch.after(0, {ONE: 32}) == ONE
    assert watch.after(PATIENCE - 1, {ONE: 64}) == ONE
    assert watch.after(1, {ONE: 64}) is None
    assert watch.after(1, {ONE: 64, OTHER: 16}) == OTHER


def test_a_program_that_reads_gets_new_patience() -> None:
    watch = Watch()
    watch.after(0, {ONE: 64})
    assert watch.after(PATIENCE - 1, {ONE: 32}) == ONE
    assert watch.after(1, {ONE: 32}) == ONE
    assert watch.after(1, {}) is None
    assert watch.after(PATIENCE, {ONE: 32}) == ONE


def test_boxes_do_not_know_of_each_other_and_are_forgotten() -> None:
    watch = Watch()
    watch.after(0, {ONE: 32})
    assert watch.seen.waiting("b", {ONE: 32}) == ONE
    watch.time += 25 * 3600
    assert watch.seen.waiting("c", {}) is None
    assert not watch.seen._backlogs


def test_unread_bytes_of_this_process(tmp_path: Path) -> None:
    libc = ctypes.CDLL(None)
    descriptor = libc.inotify_init1(os.O_NONBLOCK)
    try:
        libc.inotify_add_watch(descriptor, os.fsencode(tmp_path), 0x100)
        assert inotify_events.unread([os.getpid()]) == {}
        (tmp_path / "new").touch()
        assert inotify_events.unread([os.getpid()]) == {(os.getpid(), descriptor): 32}
        os.read(descriptor, 4096)
        assert inotify_events.unread([os.getpid(), 1 << 22]) == {}
    finally:
        os.close(descriptor)
