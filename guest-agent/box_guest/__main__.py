"""`python -m box_guest`: runs the agent, the init process of a box."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from box_guest.config import AgentPaths


def main() -> int:
    """Run the agent until SIGTERM or SIGINT. Return exit status 0, or 1 if it could not start."""
    import gc

    # Imported modules are never freed. Collecting them repeatedly took a third of the time until
    # hello. The agent enables the collector once it is up.
    gc.disable()

    import argparse
    import asyncio
    import logging
    from functools import partial
    from pathlib import Path

    from box_guest import protocol
    from box_guest.agent import prepare_box
    from box_guest.cli import name_process
    from box_guest.config import AgentPaths
    from box_guest.errors import ConfigError

    parser = argparse.ArgumentParser(prog="python -m box_guest", description="The guest agent.")
    path = partial(parser.add_argument, type=Path, metavar="PATH")
    path("--run-dir", default=Path(protocol.RUN_DIR), help="directory shared with the daemon")
    path("--guest-socket", default=Path(protocol.GUEST_SOCKET), help="socket of the box-guest CLI")
    path("--forward-dir", default=Path(protocol.FORWARD_DIR), help="sockets of forwarded agents")
    path("--state-dir", default=Path(protocol.STATE_DIR), help="files kept on the box's own disk")
    parser.add_argument("--verbose", action="store_true", help="also log informational messages")
    parsed = parser.parse_args()
    logging.basicConfig(level=logging.INFO if parsed.verbose else logging.WARNING)
    prepare_box()
    name_process()
    paths = AgentPaths(parsed.run_dir, parsed.guest_socket, parsed.forward_dir, parsed.state_dir)
    try:
        asyncio.run(_serve(paths))
    except ConfigError as error:
        print(f"box-guest: {error}", file=sys.stderr)
        return 1
    return 0


async def _serve(paths: AgentPaths) -> None:
    """Serve the box that the run directory describes, and the box that replaces it."""
    import asyncio

    from box_guest import protocol
    from box_guest.agent import Agent, OwnProcesses
    from box_guest.config import load
    from box_guest.control.identity import Identity
    from box_guest.process.background import BackgroundCommands
    from box_guest.process.process import Reaper

    reaper = Reaper()
    commands = BackgroundCommands(paths.state_dir / protocol.COMMANDS_DIR, reaper)
    own = OwnProcesses(reaper, commands)
    try:
        identity = Identity(paths.run_dir)
        while await Agent(load(paths.run_dir), paths, identity, own).run():
            identity = Identity(paths.run_dir)
            stay = {asyncio.current_task(), *commands.tasks}
            for task in asyncio.all_tasks() - stay:
                task.cancel()  # what belongs to connections of the previous box
    finally:
        await commands.close()
        reaper.close()


if __name__ == "__main__":
    # Files of the working directory must not become modules of the agent. With -I, sys.path has no
    # such entry; without it, the first entry is the working directory.
    if not sys.flags.safe_path and not sys.flags.isolated and sys.path:
        sys.path.pop(0)
    sys.exit(main())
