"""`python -m box_guest.handover`: becomes a command whose secret variables the agent never sees.

The agent lives as long as its box, and everything it has read may remain in its memory. So the
agent starts this program in place of the command and passes it a frame that it cannot read. The
frame holds the command and its variables, sealed to a key that this program creates. Then this
process executes the command, which replaces all of its memory.

The input starts with a frame from the agent: the box's id, the shell, the environment of the
session. The sealed frame follows; every byte after it belongs to the command. The first line of the
output is this program's public key.
"""

from __future__ import annotations

import os
import signal
import sys

from box_guest.shared import frames
from box_guest.shared.frames import MalformedFrame
from box_guest.shared.sealing import HANDOVER, Opener, SealBroken
from box_guest.shared.signals import restore_ignored

FAILED = 125
"""Exit status if the command was not started."""
NOT_FOUND = 127
"""Exit status if the shell cannot be started, as for every command of the agent."""


def main() -> int:
    """Execute the command. Returns an exit status only on failure, with the reason on stderr."""
    restore_ignored()
    # The interpreter catches SIGINT: without this, Ctrl-C would end `_receive` with a traceback.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        shell, command, env = _receive()
    except (MalformedFrame, SealBroken) as error:
        print(f"box-guest: the command was not started: {error}", file=sys.stderr)
        return FAILED
    try:
        os.execve(shell, [os.path.basename(shell), b"-c", command], env)
    except OSError as error:
        print(f"{os.fsdecode(shell)}: {error.strerror}", file=sys.stderr)
        return NOT_FOUND


def _receive() -> tuple[bytes, bytes, dict[bytes, bytes]]:
    """Read the shell, the command and its environment. Raises MalformedFrame or SealBroken."""
    opener = Opener()
    box_id, shell, *session = frames.split(frames.read(0), 2)
    os.write(1, frames.greeting(opener.public))
    sealed = frames.read(0)
    text = opener.open(sealed, purpose=HANDOVER, box_id=box_id.decode("utf-8", "replace"))
    command, *variables = frames.split(text, 1)
    return shell, command, frames.environment([*session, *variables])


if __name__ == "__main__":
    sys.exit(main())
