"""`python -m box_guest.handover`: becomes a command, with variables that it alone has seen.

The agent lives as long as its box, and what it has had in its memory may be found there. So it
starts this program in the place of the command, and passes on what it cannot read: a frame with the
command and variables, sealed to a key that is made here. Then this process becomes the command, and
nothing of the memory it had is left.

On its input comes a frame of the agent's (the box's id, the shell, the environment of the session),
then the sealed one; every byte after that is the command's. On its output it shows its key first.
"""

from __future__ import annotations

import os
import signal
import sys

from box_guest import frames
from box_guest.frames import MalformedFrame
from box_guest.sealing import HANDOVER, Opener, SealBroken

FAILED = 125
"""Exit status when the command was not begun."""
NOT_FOUND = 127
"""Exit status when its shell cannot be started, as of every command of the agent's."""
_AS_COMMANDS_HAVE_THEM = (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT)
"""The interpreter ignores or catches these; what is ignored stays so in the command."""


def main() -> int:
    """Returns only when it fails, with the reason on stderr."""
    for number in _AS_COMMANDS_HAVE_THEM:
        signal.signal(number, signal.SIG_DFL)
    try:
        shell, command, env = _taken()
    except (MalformedFrame, SealBroken) as error:
        print(f"box-guest: what the command was to be handed is refused: {error}", file=sys.stderr)
        return FAILED
    try:
        os.execve(shell, [os.path.basename(shell), b"-c", command], env)  # noqa: S606 - the command
    except OSError as error:
        print(f"{os.fsdecode(shell)}: {error.strerror}", file=sys.stderr)
        return NOT_FOUND


def _taken() -> tuple[bytes, bytes, dict[bytes, bytes]]:
    """Shell, command and environment. MalformedFrame, SealBroken."""
    opener = Opener()
    box_id, shell, *session = frames.split(frames.read(0), 2)
    os.write(1, frames.greeting(opener.public))
    sealed = frames.read(0)
    text = opener.open(sealed, purpose=HANDOVER, box_id=box_id.decode("utf-8", "replace"))
    command, *own = frames.split(text, 1)
    return shell, command, frames.environment([*session, *own])


if __name__ == "__main__":
    sys.exit(main())
