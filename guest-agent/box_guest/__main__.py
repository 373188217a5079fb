"""`python -m box_guest`: the agent, or the `box-guest` command line when arguments ask for it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from box_guest.config import Places


def main() -> int:
    """Runs the agent until it is told to end. Exit status 1 when it could not start."""
    import gc

    # What is imported stays; looking at it again and again took a third of the time until hello.
    # The agent turns the collector on when it is up.
    gc.disable()

    import argparse
    import logging
    from pathlib import Path

    from box_guest import protocol
    from box_guest.agent import prepare_box
    from box_guest.cli import name_process
    from box_guest.config import Places
    from box_guest.errors import ConfigError

    parser = argparse.ArgumentParser(prog="python -m box_guest", description="The guest agent.")
    parser.add_argument("--run-dir", type=Path, default=Path(protocol.RUN_DIR))
    parser.add_argument("--guest-socket", type=Path, default=Path(protocol.GUEST_SOCKET))
    parser.add_argument("--forward-dir", type=Path, default=Path(protocol.FORWARD_DIR))
    parser.add_argument("--state-dir", type=Path, default=Path(protocol.STATE_DIR))
    parser.add_argument("--verbose", action="store_true")
    parsed = parser.parse_args()
    logging.basicConfig(level=logging.INFO if parsed.verbose else logging.WARNING)
    prepare_box()
    name_process()
    places = Places(parsed.run_dir, parsed.guest_socket, parsed.forward_dir, parsed.state_dir)
    try:
        while _serve(places):
            pass
    except ConfigError as error:
        print(f"box-guest: {error}", file=sys.stderr)
        return 1
    return 0


def _serve(places: Places) -> bool:
    """Serves the box that the run directory tells of. True: it tells of another one by now."""
    import asyncio

    from box_guest.agent import Agent
    from box_guest.config import load
    from box_guest.identity import Identity

    identity = Identity(places.run_dir)
    return asyncio.run(Agent(load(places.run_dir), places, identity).run())


if __name__ == "__main__":
    # Files of the working directory must not become modules of the agent. With -I there is no
    # such entry; without it the first one is the working directory.
    if not sys.flags.safe_path and not sys.flags.isolated and sys.path:
        sys.path.pop(0)
    sys.exit(main())
