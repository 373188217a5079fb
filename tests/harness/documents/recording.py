"""Recordings of a terminal: asciicast v2 files, the text that they show, and a still picture.

https://docs.asciinema.org/manual/asciicast/v2/ describes the format. `asciinema play FILE` plays a
recording. The library `rich` interprets the control sequences and draws the picture.
"""

from __future__ import annotations

import codecs
import json
import re
import shlex
import time
from io import StringIO
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.harness.documents.terminal import Reply, Shell

WIDTH = 100
"""Columns of the terminal, and of the picture."""
PAUSE_S = 1.5
"""A player waits for this long before each input. The recorded shell does not wait."""
PROMPT = "\x1b[1;32m$\x1b[0m "
"""A green dollar sign."""
_NEXT_PROMPT = re.compile(re.escape(PROMPT.encode()) + rb"\Z")
_FONT = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)


class Recorder:
    """Records a shell as a person sees it: with the input and a prompt."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell
        shell.type(f"stty echo onlcr; PS2='> '; PS1={shlex.quote(PROMPT)}\n")
        shell.read_until(_NEXT_PROMPT, "the prompt of the recording")
        self._start = time.monotonic()
        self._pauses = 0.0
        self._output = [(0.0, PROMPT.encode())]
        shell.on_output = self._record

    def show(self, command: str, replies: Sequence[Reply] = ()) -> None:
        """Type a command, then each reply after its pattern, and wait for the prompt."""
        self._type(command + "\n")
        for question, reply in replies:
            self._shell.read_until(re.compile(question.encode() + rb"\Z"), command)
            self._type(reply)
        self._shell.read_until(_NEXT_PROMPT, command)

    def cast(self, title: str) -> str:
        """Return the recording as an asciicast v2 file."""
        decoder = codecs.getincrementaldecoder("utf-8")()
        events = [[seconds, "o", decoder.decode(data)] for seconds, data in self._output]
        height = 1 + sum(data.count(b"\n") for _, data in self._output)
        header = {"version": 2, "width": WIDTH, "height": height, "title": title}
        lines: list[object] = [header, *events]
        return "".join(json.dumps(line) + "\n" for line in lines)

    def _type(self, text: str) -> None:
        self._pauses += PAUSE_S
        self._shell.type(text)

    def _record(self, data: bytes) -> None:
        seconds = time.monotonic() - self._start + self._pauses
        self._output.append((round(seconds, 3), data))


def screen(cast: str) -> Text:
    """Return the screen at the end of a recording, with its colours."""
    _, *events = map(json.loads, cast.splitlines())
    output = "".join(text for _, _, text in events)
    return Text.from_ansi(re.sub(r"\r+\n", "\n", output).removesuffix(PROMPT))


def draw(cast: str) -> str:
    """Return an SVG of the last screen. It loads no font: a page shows it as an image."""
    header = json.loads(cast.partition("\n")[0])
    # Explicit values: the environment of a run (TERM, NO_COLOR, COLUMNS) must not change a picture.
    console = Console(
        record=True,
        file=StringIO(),
        force_terminal=True,
        color_system="truecolor",
        no_color=False,
        width=header["width"],
        height=header["height"],
    )
    console.print(screen(cast), end="")
    svg = console.export_svg(title=header["title"], unique_id="terminal")
    return _FONT.sub("", svg)
