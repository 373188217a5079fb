"""Protocol adapter only. The command line: `boxd serve | doctor | down | images | volumes |
backup | restore`.

The service is imported by the commands that use it: that takes more than a second, and within it
Ctrl-C is to end quietly.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import stat
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from boxd import log
from boxd.config import (
    BACKENDS,
    BACKUPS_KEPT,
    DEFAULT_IMAGE,
    DEFAULT_STATE_DIR,
    DOCKER_SOCKET,
    Address,
    Config,
)
from boxd.errors import BadName, BadRequest, BoxdError, Unavailable
from boxd.names.duration import parse_duration

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterator, Sequence

    from rich.console import Console

    from boxd.service import StopMode

    _Commands = argparse._SubParsersAction[argparse.ArgumentParser]

INTERRUPTED = 130
"""Exit status after Ctrl-C, as a shell counts it."""
SSH_ADDR = "127.0.0.1:2222"
TRUSTED_PROXY = "127.0.0.1"
DEFAULTS = {
    "state_dir": DEFAULT_STATE_DIR,
    "verbose": False,
    "ssh_addr": SSH_ADDR,
    "api_addr": None,
    "meta_dsn": None,
    "meta_dsn_file": None,
    "store_file": None,
    "cache_dir": None,
    "cache_size": None,
    "trash": "24h",
    "default_image": DEFAULT_IMAGE,
    "backend": BACKENDS[0],
    "docker_socket": DOCKER_SOCKET,
    "boxes_size": None,
    "no_templates": False,
    "idle_timeout": "2m",
    "idle_reap": "3h",
    "grace": None,
    "max_running": None,
    "max_memory": None,
    "min_free": None,
    "workspace_automount": False,
    "trusted_proxy": TRUSTED_PROXY,
    "backup_url": None,
    "backup_key_file": None,
    "backup_store_file": None,
    "backup_every": "24h",
    "backup_keep": BACKUPS_KEPT,
}
CACHE_SIZE = 4 << 30
"""Bytes of blocks that each mounted drive keeps on the disk before an external store. The embedded
one stands on the same disk: keeping its blocks twice is not worth it by default."""
_CACHE = "4G with --store-file, else 0"
_SIZE = re.compile(r"([0-9]{1,12})([KMGT]?)")
_UNITS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}
DOWN_TIMEOUT = 90.0
"""Seconds that `boxd down` waits for a living daemon to stop everything."""
ENDS = {
    "everything": "Stopped.",
    "daemon": "boxd stopped; boxes go on running and are found again at the next start",
}
"""Last words by what was to be stopped."""
_PERCENT = re.compile(r"\s*\d+ %")


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status: 0 done, 1 refused or failed, 2 usage, 130 Ctrl-C."""
    arguments = _parser().parse_args(sys.argv[1:] if argv is None else argv)
    log.setup(verbose=arguments.verbose)
    try:
        config = _config(arguments)
        status: int = arguments.run(config, arguments)
    except BoxdError as error:
        print(f"boxd: {log.escape(log.redact(str(error)))}", file=sys.stderr)
        return 2 if isinstance(error, BadRequest) else 1
    except KeyboardInterrupt:
        return INTERRUPTED
    return status


def _parser() -> argparse.ArgumentParser:
    """Each command takes the flags that matter to it; the others have their defaults."""
    common, servers, listeners = _flags(), _flags(), _flags()
    add = common.add_argument
    add("--state-dir", type=Path, metavar="DIR", help=f"all state ({DEFAULT_STATE_DIR})")
    add("--verbose", action="store_true", help="log more")
    add = servers.add_argument
    add("--meta-dsn", metavar="DSN", help="PostgreSQL, without password; default: embedded")
    add("--meta-dsn-file", type=Path, metavar="FILE", help="file (mode 0600) with the DSN")
    add("--store-file", type=Path, metavar="FILE", help="JSON (0600) naming an S3; else embedded")
    add("--backend", choices=BACKENDS, help=f"what makes the boxes ({BACKENDS[0]})")
    add("--docker-socket", type=Path, metavar="PATH", help=f"of its engine ({DOCKER_SOCKET})")
    add = listeners.add_argument
    add("--ssh-addr", metavar="HOST:PORT", help=f"SSH ({SSH_ADDR})")
    add("--api-addr", metavar="HOST:PORT", help="HTTP API; not served when absent")
    add("--default-image", metavar="NAME", help=f"image of specs without one ({DEFAULT_IMAGE})")
    serving = _flags()
    add = serving.add_argument
    add("--idle-timeout", metavar="DURATION", help="unused boxes are suspended after it (2m)")
    add("--idle-reap", metavar="DURATION", help="suspended boxes are removed after it (3h)")
    add("--grace", metavar="DURATION", help="boxes stay awake so long after a detach (none)")
    add("--boxes-size", metavar="SIZE", help="disk for all boxes; 0: without limits of their own")
    add("--max-running", type=int, metavar="N", help="boxes of all owners that run at once")
    add("--max-memory", metavar="SIZE", help="sum of the memory caps of running boxes")
    add("--min-free", metavar="SIZE", help="disk space that stays free; less: no box starts")
    add("--no-templates", action="store_true", help="start every new box from nothing")
    add("--workspace-automount", action="store_true", help="/wrk in every new box")
    add("--cache-dir", type=Path, metavar="DIR", help="blocks of drives; default: in the state")
    add("--cache-size", metavar="SIZE", help=f"of each drive, for example 20G; 0: none ({_CACHE})")
    add("--trash", metavar="DURATION", help="removed files come back so long; 0: never (24h)")
    add("--trusted-proxy", metavar="IP", help=f"whose forwarded headers count ({TRUSTED_PROXY})")
    add("--backup-url", metavar="DIR|s3://BUCKET/PREFIX", help="backs the control plane up there")
    add("--backup-every", metavar="DURATION", help="time between two backups (24h)")
    add("--backup-keep", type=_count, metavar="N", help=f"archives that stay ({BACKUPS_KEPT})")
    backups = _backup_flags()
    parser = argparse.ArgumentParser(prog="boxd", description="On-demand boxes around /wrk.")
    parser.set_defaults(**DEFAULTS)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    everything = [common, listeners, servers, serving, backups]
    for name, run, parents, text in (
        ("serve", _serve, everything, "serve in the foreground; Ctrl-C stops everything"),
        ("doctor", _doctor, everything[:3], "what this host can and cannot do"),
        ("down", _down, [common, servers], "stop what serves, or what a dead daemon left running"),
    ):
        commands.add_parser(name, parents=parents, help=text).set_defaults(run=run)
    _add_images(commands.add_parser("images", help="build, import, list or remove images"), common)
    volumes = commands.add_parser("volumes", help="drives of a service that runs")
    verbs = volumes.add_subparsers(required=True, metavar="VERB")
    parents = [common, servers]
    verbs.add_parser("ls", parents=parents, help="all").set_defaults(run=_volumes_ls)
    text = "write what `wrkfs --credentials` takes into a new file (0600)"
    credentials = verbs.add_parser("credentials", parents=parents, help=text)
    credentials.add_argument("volume", metavar="VOLUME", help="as `volumes ls` shows it")
    credentials.add_argument("file", type=Path, metavar="FILE")
    credentials.set_defaults(run=_volumes_credentials)
    _add_backup_commands(commands, [common, servers, backups])
    return parser


def _backup_flags() -> argparse.ArgumentParser:
    backups = _flags()
    add = backups.add_argument
    flags = ("--backup-key-file", "--key-file")
    add(*flags, type=Path, metavar="FILE", help="encrypts backups (0600)")
    add("--backup-store-file", type=Path, metavar="FILE", help="as --store-file, for s3:// backups")
    return backups


def _add_backup_commands(commands: _Commands, parents: list[argparse.ArgumentParser]) -> None:
    text = (
        "write the control plane, encrypted, into an archive; /wrk and boxes' disks are not in it"
    )
    backup = commands.add_parser("backup", parents=parents, help=text)
    backup.add_argument("--to", metavar="DIR|s3://BUCKET/PREFIX", help="where archives are kept")
    backup.add_argument("--keep", type=_count, metavar="N", help="remove older ones; default: none")
    backup.add_argument("--new-key", type=Path, metavar="FILE", help="only make a key file")
    backup.set_defaults(run=_backup)
    text = "make a fresh state directory from an archive"
    restore = commands.add_parser("restore", parents=parents, help=text)
    restore.add_argument(
        "--from",
        dest="source",
        required=True,
        metavar="PLACE",
        help="as --to, or one archive in it",
    )
    restore.add_argument(
        "--keep-database", action="store_true", help="--meta-dsn-file has the rows: restore keys"
    )
    restore.set_defaults(run=_restore)


def _add_images(images: argparse.ArgumentParser, common: argparse.ArgumentParser) -> None:
    verbs = images.add_subparsers(required=True, metavar="VERB")
    build = verbs.add_parser("build", parents=[common], help="build images anew")
    build.add_argument("names", nargs="+", metavar="NAME")
    build.set_defaults(run=_images_build)
    text = "an image of a directory or a tar archive (also docker save, OCI layout)"
    importing = verbs.add_parser("import", parents=[common], help=text)
    importing.add_argument("name", metavar="NAME")
    importing.add_argument("source", type=Path, metavar="FILE|DIR")
    importing.set_defaults(run=_images_import)
    removing = verbs.add_parser("rm", parents=[common], help="remove images no box stands on")
    removing.add_argument("names", nargs="+", metavar="NAME")
    removing.set_defaults(run=_images_rm)
    verbs.add_parser("ls", parents=[common], help="the catalog").set_defaults(run=_images_ls)


def _flags() -> argparse.ArgumentParser:
    """A group of flags. What is not given is not set, so that the default of all counts."""
    return argparse.ArgumentParser(add_help=False, argument_default=argparse.SUPPRESS)


def _config(arguments: argparse.Namespace) -> Config:
    """Raises BadRequest naming the wrong flag."""
    return Config(
        state_dir=arguments.state_dir.absolute(),
        ssh_addr=_address(arguments.ssh_addr, "--ssh-addr"),
        api_addr=_address(arguments.api_addr, "--api-addr") if arguments.api_addr else None,
        meta_dsn=_meta_dsn(arguments.meta_dsn, arguments.meta_dsn_file),
        store_file=arguments.store_file,
        cache_dir=arguments.cache_dir and arguments.cache_dir.absolute(),
        cache_size=_cache_size(arguments.cache_size, arguments.store_file),
        trash_seconds=_trash(arguments.trash),
        default_image=arguments.default_image,
        backend=arguments.backend,
        docker_socket=arguments.docker_socket.absolute(),
        boxes_size=_maybe_size(arguments.boxes_size, "--boxes-size"),
        templates=not arguments.no_templates,
        idle_timeout=parse_duration(arguments.idle_timeout, "--idle-timeout"),
        idle_reap=parse_duration(arguments.idle_reap, "--idle-reap"),
        grace=None if arguments.grace is None else parse_duration(arguments.grace, "--grace"),
        max_running=arguments.max_running,
        max_memory=_maybe_size(arguments.max_memory, "--max-memory"),
        min_free=_maybe_size(arguments.min_free, "--min-free"),
        workspace_automount=arguments.workspace_automount,
        trusted_proxy=arguments.trusted_proxy,
        backup_url=arguments.backup_url,
        backup_key_file=arguments.backup_key_file,
        backup_store_file=arguments.backup_store_file,
        backup_every=parse_duration(arguments.backup_every, "--backup-every"),
        backup_keep=arguments.backup_keep,
        verbose=arguments.verbose,
    )


def _address(text: str, flag: str) -> Address:
    host, colon, port = text.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    bracketed = host.startswith("[") and host.endswith("]")
    plain = port.isascii() and port.isdigit() and int(port) <= 65535
    if not colon or not plain or (":" in bare) != bracketed:
        raise BadRequest(f"{flag}: {text!r} is not HOST:PORT, for example 127.0.0.1:2222")
    return Address(bare or "0.0.0.0", int(port))  # noqa: S104  an empty host means all addresses


def _maybe_size(text: str | None, flag: str) -> int | None:
    return None if text is None else _size(text, flag)


def _trash(text: str) -> int:
    if text == "0":
        return 0
    try:
        return int(parse_duration(text, "--trash").total_seconds())
    except BadName as error:
        raise BadRequest(f"{error}, or 0") from None


def _cache_size(text: str | None, store_file: Path | None) -> int:
    if text is None:
        return 0 if store_file is None else CACHE_SIZE
    return _size(text, "--cache-size")


def _size(text: str, flag: str) -> int:
    match = _SIZE.fullmatch(text.upper())
    if match is None:
        raise BadRequest(f"{flag}: {text!r} is not a size, for example 500M, 20G or 0")
    return int(match[1]) << _UNITS[match[2]]


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError
    return number


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
    import asyncio

    import uvloop
    from rich.console import Console

    from boxd import doctor

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
    """SIGINT: stop everything. SIGTERM, and SIGHUP of a closed terminal: boxes and mounts stay."""
    import asyncio

    from boxd.service import Service, StopMode

    loop = asyncio.get_running_loop()
    asked: asyncio.Future[StopMode] = loop.create_future()

    def stop(mode: StopMode) -> None:
        if not asked.done():
            asked.set_result(mode)
        else:
            _say(console, "boxd: stopping already; this takes a few seconds")

    loop.add_signal_handler(signal.SIGINT, stop, StopMode.EVERYTHING)
    loop.add_signal_handler(signal.SIGTERM, stop, StopMode.DAEMON)
    loop.add_signal_handler(signal.SIGHUP, stop, StopMode.DAEMON)
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
            _say(console, "Stopped.")
            return
        await starting
    for line in service.welcome():
        _say(console, line)
    mode = await asked
    with _progress(console) as progress:
        progress("Stopping")
        await service.stop(mode)
    _say(console, ENDS[mode.value])


@contextmanager
def _progress(console: Console) -> Iterator[_Progress]:
    """Steps as a spinner on a terminal, as lines elsewhere."""
    if not console.is_terminal:
        yield _Progress(console, None)
        return
    with console.status("Starting") as status:
        yield _Progress(console, status.update)


class _Progress:
    """Called with what begins now."""

    def __init__(self, console: Console, update: object) -> None:
        self._console = console
        self._update = update
        self._shown = ""

    def __call__(self, text: str) -> None:
        """Shows a step. Where lines are kept, a step that only gets on is not shown again."""
        text = log.escape(text)
        if callable(self._update):
            self._update(text)
        elif (step := _PERCENT.sub("", text)) != self._shown:
            self._shown = step
            _say(self._console, f"boxd: {step}")


def _say(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def _doctor(config: Config, arguments: argparse.Namespace) -> int:
    from boxd import doctor

    del arguments
    found = [*doctor.checks(config), doctor.suspending(config)]
    rows = [("CHECK", "", "FOUND", "REMEDY")]
    for check in found:
        word = "ok" if check.ok else "FAILS" if check.needed else "warn"
        rows.append((check.name, word, check.found, "" if check.ok else check.remedy))
    _print_table(rows)
    return 1 if any(check.needed and not check.ok for check in found) else 0


def _down(config: Config, arguments: argparse.Namespace) -> int:
    import asyncio

    import uvloop
    from rich.console import Console

    from boxd.doctor import left_running
    from boxd.embedded.statedir import lock_holder

    del arguments
    if not config.state_dir.is_dir():
        raise Unavailable(f"there is no directory {config.state_dir}; give --state-dir DIR")
    console = Console(stderr=True)
    if lock_holder(config.state_dir) is None and not left_running(config):
        _say(console, "nothing is running")
        return 0
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_stop_everything(config, console))
    return 0


async def _stop_everything(config: Config, console: Console) -> None:
    """Asks a living daemon to stop; without one, starts just enough to stop what is left."""
    from boxd.embedded.statedir import lock_holder
    from boxd.service import Service, StopMode

    holder = lock_holder(config.state_dir)
    if holder is not None:
        with _progress(console) as progress:
            progress(f"Stopping process {holder}")
            await _stop_daemon(config, holder)
        _say(console, f"stopped process {holder}")
    else:
        with _progress(console) as progress:
            progress("Stopping what an earlier boxd left")
            service = Service(config, progress)
            await service.start(serve=False)
            await service.stop(StopMode.EVERYTHING)
        _say(console, "Stopped.")


async def _stop_daemon(config: Config, holder: str) -> None:
    import asyncio

    from boxd.embedded.statedir import lock_holder

    if not holder.isdigit():
        raise Unavailable(f"{config.state_dir} is served by an unknown process; stop that one")
    os.kill(int(holder), signal.SIGINT)
    loop = asyncio.get_running_loop()
    end = loop.time() + DOWN_TIMEOUT
    while lock_holder(config.state_dir) is not None:
        if loop.time() > end:
            raise Unavailable(f"process {holder} did not stop in {DOWN_TIMEOUT:.0f} s")
        await asyncio.sleep(0.1)


def _images_build(config: Config, arguments: argparse.Namespace) -> int:
    import asyncio

    from rich.console import Console

    from boxd.service import build_image

    console = Console(stderr=True)
    with _progress(console) as progress, asyncio.Runner() as runner:
        for name in arguments.names:
            runner.run(build_image(config, name, progress))
    return 0


def _images_import(config: Config, arguments: argparse.Namespace) -> int:
    import asyncio

    from rich.console import Console

    from boxd.service import import_image

    console = Console(stderr=True)
    with _progress(console) as progress, asyncio.Runner() as runner:
        found = runner.run(import_image(config, arguments.name, arguments.source, progress))
    for note in found.notes:
        _say(console, log.escape(note))
    size = f"{found.bytes / 1e6:.0f} MB in {found.entries} files"
    _say(console, f"image {arguments.name} is imported: {size}")
    return 0


def _images_rm(config: Config, arguments: argparse.Namespace) -> int:
    from boxd.service import remove_image

    for name in arguments.names:
        remove_image(config, name)
        print(f"removed {name}")
    return 0


def _volumes_ls(config: Config, arguments: argparse.Namespace) -> int:
    import asyncio

    from boxd.service import list_volumes

    del arguments
    rows = asyncio.run(list_volumes(config))
    _print_table([("VOLUME", "OWNER", "WORKSPACE", "CREATED"), *rows])
    return 0


def _volumes_credentials(config: Config, arguments: argparse.Namespace) -> int:
    import asyncio

    from boxd.embedded.files import write_private
    from boxd.service import volume_credentials

    file: Path = arguments.file
    if file.exists():
        raise BadRequest(f"{file} exists; name a file that does not")
    text = asyncio.run(volume_credentials(config, arguments.volume))
    try:
        write_private(file, text.encode())
    except OSError as error:
        raise BadRequest(f"{file}: {error.strerror}") from None
    print(f"wrote {file}: it opens the whole drive, keep it as secret as the files in it")
    return 0


def _images_ls(config: Config, arguments: argparse.Namespace) -> int:
    from boxd.service import known_images

    del arguments
    rows = (
        (image.name, "yes" if image.built else "no", image.description)
        for image in known_images(config)
    )
    _print_table([("NAME", "BUILT", "DESCRIPTION"), *rows])
    return 0


def _backup(config: Config, arguments: argparse.Namespace) -> int:
    from boxd import cli_backup

    return cli_backup.backup(config, arguments.to, arguments.keep, arguments.new_key)


def _restore(config: Config, arguments: argparse.Namespace) -> int:
    import asyncio

    from rich.console import Console

    from boxd import cli_backup

    console = Console(stderr=True)
    with _progress(console) as progress:
        lines = asyncio.run(
            cli_backup.restore(
                config, arguments.source, progress, keep_database=arguments.keep_database
            )
        )
    for line in lines:
        _say(console, line)
    return 0


def _print_table(rows: Sequence[tuple[str, ...]]) -> None:
    """Aligned columns on stdout, whatever the width of the terminal."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print("  ".join(cells).rstrip())
