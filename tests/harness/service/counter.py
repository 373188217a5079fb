"""A process in a box that counts, and its present state."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.harness.service.user import User

COUNTER = """
cat > /root/count.sh <<'END'
nonce=$(head -c 16 /dev/urandom | od -An -tx1 | tr -d ' \\n')
exec 3>>/wrk/open
cd /wrk
ticks=0
while true; do
  ticks=$((ticks + 1))
  echo "$$ $nonce" >/root/who
  echo $ticks >/root/ticks
  echo $ticks >&3
  sleep 0.1
done
END
nohup setsid sh /root/count.sh >/dev/null 2>&1 </dev/null &
while ! test -s /root/ticks; do sleep 0.1; done
"""
"""A process with a nonce and a counter in memory, an open file and a directory on /wrk."""
LOOK = """
until who=$(cat /root/who) && ticks=$(cat /root/ticks) && test "$who" && test "$ticks"; do :; done
echo "$who"; echo "$ticks"
"""
"""Prints the state of the counter. A file is empty for a moment while the process writes it."""


def counter(user: User, ref: str) -> tuple[str, int]:
    """Return the pid and nonce of the counter in a box, and its count."""
    who, ticks = user.ssh(ref, LOOK).splitlines()
    return who, int(ticks)


def ticks_on(user: User, reached: int) -> bool:
    """Return whether the counter in the box `dev` has continued."""
    return counter(user, "dev")[1] > reached
