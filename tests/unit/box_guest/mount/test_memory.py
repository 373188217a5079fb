"""The collector is told once to come rarely, and finds cycles as before."""

import subprocess
import sys

PROGRAM = """
import gc, weakref
from box_guest.mount.memory import COLLECT, collect_rarely

class Node: pass

collect_rarely()
assert gc.get_threshold() == COLLECT and gc.get_freeze_count() > 0 and gc.isenabled()
one = Node()
one.itself = one
gone = weakref.ref(one)
del one
kept = []
for _ in range(COLLECT[0] + 10):
    kept.append([])
assert gone() is None
"""


def test_cycles_go_though_the_collector_comes_rarely() -> None:
    subprocess.run([sys.executable, "-c", PROGRAM], check=True, timeout=60)
