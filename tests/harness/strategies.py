"""Hypothesis strategies that several areas use."""

from __future__ import annotations

from datetime import timedelta

from hypothesis import strategies as st

from boxd.names import words
from boxd.names.duration import MAX_DURATION

DURATIONS = st.integers(1, int(MAX_DURATION.total_seconds())).map(lambda s: timedelta(seconds=s))
NAMES = st.from_regex(r"[a-z0-9](?:[a-z0-9-]{0,55}[a-z0-9])?", fullmatch=True).filter(
    lambda name: not words.is_reserved(name)
)
