"""The times of leases fit the lease time that the database counts."""

from __future__ import annotations

import re

from tests.model.lease_session import EXPIRY
from wrkfs.meta.interface.lease_times import (
    HEARTBEAT,
    KERNEL_MAX,
    KERNEL_MIN,
    RECALL_WAIT,
    TRUST,
)
from wrkfs.meta.sql.migrate import HERE

LEASE_TIME = re.compile(r"FUNCTION wrkfs\.lease_time\(\)[^;]*?SELECT interval '(\d+) s'")


def lease_time() -> float:
    """The lease time of the installed functions, in seconds."""
    text = (HERE / "functions" / "1_leases.sql").read_text(encoding="utf-8")
    match = LEASE_TIME.search(text)
    assert match is not None
    return float(match[1])


def test_a_holder_stops_a_second_before_others_no_longer_wait() -> None:
    assert lease_time() >= TRUST + 1


def test_two_lost_heartbeats_end_no_lease() -> None:
    assert lease_time() >= 3 * HEARTBEAT
    assert TRUST > 2 * HEARTBEAT


def test_a_change_outwaits_a_dead_holder() -> None:
    assert lease_time() + HEARTBEAT < RECALL_WAIT


def test_the_kernel_gets_a_validity() -> None:
    assert 0 < KERNEL_MIN < TRUST <= KERNEL_MAX


def test_every_expiry_uses_the_lease_time() -> None:
    text = (HERE / "functions" / "6_sessions.sql").read_text(encoding="utf-8")
    assert text.count("v_now + wrkfs.lease_time()") == 2
    assert "v_now + interval" not in text


def test_the_model_of_leases_uses_the_lease_time() -> None:
    assert lease_time() == EXPIRY
