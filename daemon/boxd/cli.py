"""Protocol adapter only. The command line: `boxd serve | doctor | down | images`."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import stat
import sys
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import uvloop
from rich.console import Console

from boxd import doctor, log
from boxd.config import (
    DEFAULT_GRACE,
    DEFAULT_IDLE_REAP,
    DEFAULT_IDLE_TIMEOUT,
    DEFAULT_IMAGE,
    DEFAULT_STATE_DIR,
    Address,
    Config,
)
from boxd.embedded.statedir import lock_holder
from boxd.errors import BadRequest, BoxdError, Unavailable
from boxd.names.duration import format_duration, parse_duration
from boxd.service import Service, StopMode, build_image, known_images

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

DOWN_TIMEOUT = 90.0
"""Seconds that `boxd down` waits for a living daemon to stop everything."""


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status: 0 done, 1 refused or failed, 2 usage."""
    arguments = _parser().parse_args(sys.argv[1:] if argv is None else argv)
    log.setup(verbose=arguments.verbose)
    try:
        config = _config(arguments)
        status: int = arguments.run(config, arguments)
    except BoxdError as error:
        print(f"boxd: {log.escape(log.redact(str(error)))}", file=sys.stderr)
        return 2 if isinstance(error, BadRequest) else 1
    return status


def _parser() -> argparse.ArgumentParser:
    common = argparse.ArgumentParser(add_help=False)
    add = common.add_argument
    add("--state-dir", type=Path, default=DEFAULT_STATE_DIR, help="all state (%(default)s)")
    add("--verbose", action="store_true", help="log more")
    add("--ssh-addr", default="127.0.0.1:2222", metavar="HOST:PORT", help="SSH (%(default)s)")
    add("--api-addr", metavar="HOST:PORT", help="HTTP API; not served when absent")
    add("--meta-dsn", metavar="DSN", help="PostgreSQL, without password; default: embedded")
    add("--meta-dsn-file", type=Path, metavar="FILE", help="file (mode 0600) with the DSN")
    add("--store-file", type=Path, metavar="FILE", help="JSON (0600) naming an S3; else embedded")
    add("--default-image", default=DEFAULT_IMAGE, help="image of specs without one (%(default)s)")
    add("--workspace-automount", action="store_true", help="/wrk in every new box")
    for flag, default, text in (
        ("--grace", DEFAULT_GRACE, "how long a box stays awake after its last user left"),
        ("--idle-timeout", DEFAULT_IDLE_TIMEOUT, "when an idle box is suspended"),
        ("--idle-reap", DEFAULT_IDLE_REAP, "when a suspended box is removed"),
    ):
        shown = format_duration(default)
        add(flag, default=shown, metavar="DURATION", help=f"{text} ({shown})")
    add("--admin-keys", type=Path, metavar="FILE", help="public keys of administrators")
    add("--trusted-proxy", default="127.0.0.1", help="whose forwarded headers count (%(default)s)")
    parser = argparse.ArgumentParser(prog="boxd", description="On-demand boxes around /wrk.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, run, text in (
        ("serve", _serve, "serve in the foreground; Ctrl-C stops everything"),
        ("doctor", _doctor, "what this host can and cannot do"),
        ("down", _down, "stop what a dead daemon left running"),
    ):
        commands.add_parser(name, parents=[common], help=text).set_defaults(run=run)
    images = commands.add_parser("images", help="build or list images")
    verbs = images.add_subparsers(required=True, metavar="VERB")
    build = verbs.add_parser("build", parents=[common], help="build images anew")
    build.add_argument("names", nargs="+", metavar="NAME")
    build.set_defaults(run=_images_build)
    verbs.add_parser("ls", parents=[common], help="the catalog").set_defaults(run=_images_ls)
    return parser


def _config(arguments: argparse.Namespace) -> Config:
    """Raises BadRequest naming the wrong flag."""
    return Config(
        state_dir=arguments.state_dir.absolute(),
        ssh_addr=_address(arguments.ssh_addr, "--ssh-addr"),
        api_addr=_address(arguments.api_addr, "--api-addr") if arguments.api_addr else None,
        meta_dsn=_meta_dsn(arguments.meta_dsn, arguments.meta_dsn_file),
        store_file=arguments.store_file,
        default_image=arguments.default_image,
        workspace_automount=arguments.workspace_automount,
        grace=_duration(arguments.grace, "--grace"),
        idle_timeout=_duration(arguments.idle_timeout, "--idle-timeout"),
        idle_reap=_duration(arguments.idle_reap, "--idle-reap"),
        admin_keys=arguments.admin_keys,
        trusted_proxy=arguments.trusted_proxy,
        verbose=arguments.verbose,
    )


def _duration(text: str, flag: str) -> timedelta:
    return timedelta(0) if text == "0" else parse_duration(text, flag)


def _address(text: str, flag: str) -> Address:
    host, colon, port = text.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    bracketed = host.startswith("[") and host.endswith("]")
    plain = port.isascii() and port.isdigit() and int(port) <= 65535
    if not colon or not plain or (":" in bare) != bracketed:
        raise BadRequest(f"{flag}: {text!r} is not HOST:PORT, for example 127.0.0.1:2222")
    return Address(bare or "0.0.0.0", int(port))  # noqa: S104  an empty host means all addresses


def _meta_dsn(dsn: str | None, file: Path | None) -> str | None:
    if dsn is not None and file is not None:
        raise BadRequest("give --meta-dsn or --meta-dsn-file, not both")
    if file is not None:
        return _private_text(file)
    if dsn is not None and (urlsplit(dsn).password or "password" in dsn.lower()):
        raise BadRequest(
            "--meta-dsn must hold no password, as everybody can read command lines: "
            "write the DSN into a file of mode 0600 and give --meta-dsn-file FILE"
        )
    return dsn


def _private_text(path: Path) -> str:
    try:
        with path.open(encoding="utf-8") as file:
            if stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077:
                raise BadRequest(f"{path} is readable by others; run: chmod 600 {path}")
            return file.read().strip()
    except OSError as error:
        raise BadRequest(f"{path}: {error.strerror}") from None


def _serve(config: Config, arguments: argparse.Namespace) -> int:
    del arguments
    console = Console(stderr=True)
    missing = [
        check for check in doctor.checks(config, starting=True) if check.needed and not check.ok
    ]
    for check in missing:
        print(f"boxd: {check.name}: {check.found}\n  remedy: {check.remedy}", file=sys.stderr)
    if missing:
        return 1
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve_until_stopped(config, console))
    return 0


async def _serve_until_stopped(config: Config, console: Console) -> None:
    """SIGINT: stop everything. SIGTERM: boxes and mounts stay. SIGHUP: read admin keys again."""
    loop = asyncio.get_running_loop()
    asked: asyncio.Future[StopMode] = loop.create_future()

    def stop(mode: StopMode) -> None:
        if not asked.done():
            asked.set_result(mode)
        else:
            console.print("boxd: stopping already; this takes a few seconds", highlight=False)

    loop.add_signal_handler(signal.SIGINT, stop, StopMode.EVERYTHING)
    loop.add_signal_handler(signal.SIGTERM, stop, StopMode.DAEMON)
    with _progress(console) as progress:
        service = Service(config, progress)
        starting = asyncio.create_task(service.start())
        waiting: set[asyncio.Future[Any]] = {starting, asked}
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            progress("Stopping: the start is taken back")
            starting.cancel()
            await asyncio.wait({starting})
        if starting.cancelled():
            return
        await starting
    loop.add_signal_handler(signal.SIGHUP, service.reload)
    for line in service.welcome():
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    mode = await asked
    with _progress(console) as progress:
        progress("Stopping")
        await service.stop(mode)
    console.print("Stopped.", highlight=False)


@contextmanager
def _progress(console: Console) -> Iterator[_Progress]:
    """Steps as a spinner on a terminal, as lines elsewhere."""
    with console.status("Starting") as status:
        yield _Progress(console, status.update if console.is_terminal else None)


class _Progress:
    """Called with what begins now."""

    def __init__(self, console: Console, update: object) -> None:
        self._console = console
        self._update = update

    def __call__(self, text: str) -> None:
        """Shows a step."""
        if callable(self._update):
            self._update(log.escape(text))
        else:
            self._console.print(f"boxd: {log.escape(text)}", markup=False, highlight=False)


def _doctor(config: Config, arguments: argparse.Namespace) -> int:
    del arguments
    found = doctor.checks(config)
    rows = [("CHECK", "", "FOUND", "REMEDY")]
    for check in found:
        word = "ok" if check.ok else "FAILS" if check.needed else "warn"
        rows.append((check.name, word, check.found, "" if check.ok else check.remedy))
    _print_table(rows)
    return 1 if any(check.needed and not check.ok for check in found) else 0


def _down(config: Config, arguments: argparse.Namespace) -> int:
    del arguments
    console = Console(stderr=True)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_stop_everything(config, console))
    return 0


async def _stop_everything(config: Config, console: Console) -> None:
    """Asks a living daemon to stop; without one, starts just enough to stop what is left."""
    holder = lock_holder(config.state_dir)
    if holder is not None:
        if not holder.isdigit():
            raise Unavailable(f"{config.state_dir} is served by an unknown process; stop that one")
        os.kill(int(holder), signal.SIGINT)
        loop = asyncio.get_running_loop()
        end = loop.time() + DOWN_TIMEOUT
        while lock_holder(config.state_dir) is not None:
            if loop.time() > end:
                raise Unavailable(f"process {holder} did not stop in {DOWN_TIMEOUT:.0f} s")
            await asyncio.sleep(0.1)
        return
    if not config.state_dir.exists():
        return
    with _progress(console) as progress:
        service = Service(config, progress)
        await service.start(serve=False)
        await service.stop(StopMode.EVERYTHING)


def _images_build(config: Config, arguments: argparse.Namespace) -> int:
    console = Console(stderr=True)
    with _progress(console) as progress, asyncio.Runner() as runner:
        for name in arguments.names:
            runner.run(build_image(config, name, progress))
    return 0


def _images_ls(config: Config, arguments: argparse.Namespace) -> int:
    del arguments
    rows = [("NAME", "BUILT", "DESCRIPTION")]
    for image, built in known_images(config):
        rows.append((image.name, "yes" if built else "no", image.description))
    _print_table(rows)
    return 0


def _print_table(rows: Sequence[tuple[str, ...]]) -> None:
    """Aligned columns on stdout, whatever the width of the terminal."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print("  ".join(cells).rstrip())
