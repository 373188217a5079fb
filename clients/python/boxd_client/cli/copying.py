"""`box cp`: files and directories between this machine and a box, as a tar stream."""

from __future__ import annotations

import io
import shlex
import sys
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from boxd_client.cli.archive import CopyFailed, Unpacker, pack, total_size
from boxd_client.cli.output import Progress, note, print_json
from boxd_client.errors import InvalidRequest
from boxd_client.models import Exit, Output

if TYPE_CHECKING:
    from collections.abc import Iterator

    from _typeshed import WriteableBuffer

    from boxd_client._sync.box import Box
    from boxd_client._sync.streams import CommandStream
    from boxd_client.cli.context import Context

LONGEST_S = 86_400
"""Longest time of one copy, in seconds."""
MAX_MESSAGE = 64 * 1024
UPLOAD = """\
set -e
name=%(name)s target=%(target)s
if [ -d "$target" ]; then exec tar -xf - --no-same-owner -C "$target"; fi
case $target in */) echo "$target is not a directory" >&2; exit 1;; esac
folder=$(dirname -- "$target"); mkdir -p -- "$folder"
temporary=$(mktemp -d -- "$folder/.box-cp-XXXXXX")
trap 'rm -rf -- "$temporary"' EXIT
tar -xf - --no-same-owner -C "$temporary"
mv -fT -- "$temporary/$name" "$target"
"""
DOWNLOAD = """\
set -e
source=%(source)s
[ -e "$source" ] || [ -L "$source" ] || { echo "$source: no such file" >&2; exit 1; }
cd -- "$(dirname -- "$source")"
exec tar -cf - -- "$(basename -- "$source")"
"""
DOWNLOAD_HOME = "exec tar -cf - --transform 's,^\\.,home,' -- ."


def cp(context: Context) -> int:
    """Copy a file or directory into a box or out of it."""
    source, target = context.args.source, context.args.target
    source_box, source_path = _split(source)
    target_box, target_path = _split(target)
    if (source_box is None) == (target_box is None):
        raise InvalidRequest("one of source and target must be NAME:PATH, and the other a path")
    if target_box is not None:
        context.args.box = target_box
        size = _upload(context, Path(source), target_path)
    else:
        context.args.box = source_box
        size = _download(context, source_path, Path(target))
    if context.json:
        print_json({"source": source, "target": target, "bytes": size})
    return 0


def _split(text: str) -> tuple[str | None, str]:
    """Return box and path of `NAME:PATH`; no box for a local path, which may begin with `./`."""
    box, colon, path = text.partition(":")
    if not colon or not box or box.startswith((".", "/")) or box.count("/") > 1:
        return None, text
    return box, path


def _upload(context: Context, source: Path, target: str) -> int:
    if not source.exists():
        raise CopyFailed(f"{source}: no such file")
    name = source.resolve().name or "root"
    script = UPLOAD % {"name": shlex.quote(name), "target": shlex.quote(_remote(target) or ".")}
    size = total_size(source)
    skipped: list[str] = []
    with Progress(name, size, wanted=not context.json) as progress:

        def content() -> Iterator[bytes]:
            for piece in pack(source, name, skipped.append):
                progress.advance(len(piece))
                yield piece

        result = context.box().exec(script, stdin=content(), timeout=LONGEST_S)
    if result.exit_code != 0:
        raise CopyFailed(f"{target}: {result.stderr.strip() or 'tar failed in the box'}")
    _report(skipped)
    return size


def _download(context: Context, source: str, target: Path) -> int:
    box = context.box()
    remote = _remote(source).rstrip("/") or ("/" if source.startswith("/") else "")
    name = PurePosixPath(remote).name if remote else "home"
    if name in ("", "..") or remote == "/":
        raise InvalidRequest(f"{source!r} has no name; copy its entries")
    script = DOWNLOAD % {"source": shlex.quote(remote)} if remote else DOWNLOAD_HOME
    place = target / name if target.is_dir() else target
    if not place.parent.is_dir():
        raise CopyFailed(f"{place.parent}: no such directory")
    total = _remote_size(box, remote or ".") if sys.stderr.isatty() and not context.json else None
    unpacker = Unpacker(place)
    with (
        box.stream(script, timeout=LONGEST_S) as stream,
        Progress(name, total, wanted=not context.json) as progress,
    ):
        reader = _Reader(stream, progress)
        try:
            unpacker.unpack(io.BufferedReader(reader))
        except CopyFailed:
            # An archive that is cut because tar failed: its message says more.
            reader.finish()
            if reader.code == 0:
                raise
        reader.finish()
    if reader.code != 0:
        raise CopyFailed(f"{source}: {reader.message.decode('utf-8', 'replace').strip()}")
    if unpacker.count == 0:
        raise CopyFailed(f"{source}: the box sent no files")
    _report(unpacker.skipped)
    return reader.count


def _remote(path: str) -> str:
    """Return a path in a box; relative ones begin at the home directory."""
    return f"./{path}" if path.startswith("-") else path


def _remote_size(box: Box, path: str) -> int | None:
    result = box.exec(f"du -sb -- {shlex.quote(path)} | cut -f1")
    text = result.stdout.strip()
    return int(text) if text.isascii() and text.isdigit() else None


def _report(skipped: list[str]) -> None:
    for name in skipped[:10]:
        note(f"box: skipped {name}: it is a special file, or leads out of the copy")
    if len(skipped) > 10:
        note(f"box: skipped {len(skipped) - 10} more")


class _Reader(io.RawIOBase):
    """The standard output of a command as a file. `code` is None until the command has ended."""

    def __init__(self, stream: CommandStream, progress: Progress) -> None:
        super().__init__()
        self._stream = stream
        self._progress = progress
        self._rest = memoryview(b"")
        self.message = bytearray()
        self.code: int | None = None
        self.count = 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        """Fill a part of the buffer and return its size; 0: the output has ended."""
        view = memoryview(buffer).cast("B")
        while not self._rest and self._next():
            pass
        size = min(len(view), len(self._rest))
        view[:size] = self._rest[:size]
        self._rest = self._rest[size:]
        return size

    def finish(self) -> None:
        """Read to the end of the command and drop its output."""
        while self._next():
            self._rest = memoryview(b"")

    def _next(self) -> bool:
        """Take the next event. Return False at the end."""
        event = next(self._stream, None)
        match event:
            case Output(stream="stdout", data=data):
                self._rest = memoryview(data)
                self.count += len(data)
                self._progress.advance(len(data))
            case Output(data=data):
                self.message += data[: MAX_MESSAGE - len(self.message)]
            case Exit(code=code):
                self.code = code
        return event is not None
