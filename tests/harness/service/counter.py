"""A process in a box that counts, and what it has reached."""

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
"""A process whose memory holds a nonce and a counter, with a file open and its place on /wrk."""
LOOK = """
until who=$(cat /root/who) && ticks=$(cat /root/ticks) && test "$who" && test "$ticks"; do :; done
echo "$who"; echo "$ticks"
"""
"""What it says of itself. A file that is being written is empty for a moment."""


def counter(user: User, ref: str) -> tuple[str, int]:
    """Pid and nonce of the counter in a box, and how far it has come."""
    who, ticks = user.ssh(ref, LOOK).splitlines()
    return who, int(ticks)


def ticks_on(user: User, reached: int) -> bool:
    """Whether the counter in the box `dev` came further."""
    return counter(user, "dev")[1] > reached
