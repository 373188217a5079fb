"""`python -m box_guest`: the agent, or the `box-guest` command line when arguments ask for it."""

from __future__ import annotations

import sys


def main() -> int:
    """Runs the agent until it is told to end. Exit status 1 when it could not start."""
    import argparse
    import asyncio
    import logging
    from pathlib import Path

    from box_guest import protocol
    from box_guest.agent import Agent, prepare_box
    from box_guest.cli import name_process
    from box_guest.config import Places, load
    from box_guest.errors import ConfigError

    parser = argparse.ArgumentParser(prog="python -m box_guest", description="The guest agent.")
    parser.add_argument("--run-dir", type=Path, default=Path(protocol.RUN_DIR))
    parser.add_argument("--guest-socket", type=Path, default=Path(protocol.GUEST_SOCKET))
    parser.add_argument("--forward-dir", type=Path, default=Path(protocol.FORWARD_DIR))
    parser.add_argument("--verbose", action="store_true")
    parsed = parser.parse_args()
    logging.basicConfig(level=logging.INFO if parsed.verbose else logging.WARNING)
    prepare_box()
    name_process()
    try:
        config = load(parsed.run_dir)
    except ConfigError as error:
        print(f"box-guest: {error}", file=sys.stderr)
        return 1
    places = Places(parsed.run_dir, parsed.guest_socket, parsed.forward_dir)
    asyncio.run(Agent(config, places).run())
    return 0


if __name__ == "__main__":
    # Files of the working directory must not become modules of the agent. With -I there is no
    # such entry; without it the first one is the working directory.
    if not sys.flags.safe_path and not sys.flags.isolated and sys.path:
        sys.path.pop(0)
    sys.exit(main())
