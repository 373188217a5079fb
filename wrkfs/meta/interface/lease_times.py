"""The times of leases: how long a holder serves its cache, and how long other sessions wait.

The database counts the lease time: the SQL function `wrkfs.lease_time` in functions/1_leases.sql.
The times here must fit it, and tests/unit/wrkfs/meta/interface/test_lease_times.py compares them.
All times are seconds.
"""

from __future__ import annotations

HEARTBEAT = 2.0
"""Pause between two heartbeats of a session. Each one extends the session by the lease time, which
is long enough for two lost heartbeats."""
TRUST = 5.0
"""Time after the start of a heartbeat for which a session may serve its cache. It is a second less
than the lease time. So a holder stops before other sessions change what it caches, even if the
clocks of the two machines differ in rate."""
RECALL_WAIT = 30.0
"""Time for which a change waits for leases of other sessions. It is longer than the lease time,
after which a dead holder no longer counts."""
KERNEL_MAX = 10.0
"""Upper bound of the validity of an answer in the kernel's cache. The kernel may use an answer
until the session's trust ends, so with these times `TRUST` is the lower bound."""
KERNEL_MIN = 0.1
"""A shorter validity counts as 0, because the answer would expire before the kernel uses it."""
