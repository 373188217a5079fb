"""Splits a command line into words, by the rules of a POSIX shell without expansions. Pure.

Clients choose the line, and the event loop reads it, so the time must be linear in its length.
`shlex` takes quadratic time for a long word, and argparse for many options.
"""

from __future__ import annotations

import itertools
import re

from boxd.ssh.cli.command import UsageError

MAX_LINE = 64 * 1024
"""Maximum length of a command line, in characters."""
MAX_OPTIONS = 64
"""Maximum number of words before `--` that start with `-`. *Measured* with argparse of Python 3.11:
4,000 options took 1.9 s, 64 take less than a millisecond."""
_BLANK = " \t\r\n"
_PIECE = re.compile(
    rf"""(?P<blank>[{_BLANK}]++)
    |(?P<plain>[^{_BLANK}'"\\]++)
    |'(?P<single>[^']*+)'
    |"(?P<double>(?:[^"\\]++|\\.)*+)"
    |\\(?P<escaped>.)""",
    re.DOTALL | re.VERBOSE,
)
_ESCAPED = re.compile(r'\\(["\\])')


def split_words(line: str) -> list[str]:
    """Return the words of a line.

    Raises UsageError if the line is too long, has an open quote, or has too many options.
    """
    if len(line) > MAX_LINE:
        raise UsageError(f"the command line is longer than {MAX_LINE} characters")
    words = _split(line)
    options = sum(word.startswith("-") for word in itertools.takewhile(_is_before_end, words))
    if options > MAX_OPTIONS:
        raise UsageError(
            f"the command line has {options} words that start with '-'; at most {MAX_OPTIONS} are "
            "allowed. Write -- before words that are not options"
        )
    return words


def _is_before_end(word: str) -> bool:
    return word != "--"


def _split(line: str) -> list[str]:
    words: list[str] = []
    pieces: list[str] | None = None
    position = 0
    while position < len(line):
        match = _PIECE.match(line, position)
        if match is None:
            missing = "escaped character" if line[position] == "\\" else "closing quotation"
            raise UsageError(f"the command line cannot be read: no {missing}")
        position = match.end()
        if match.lastgroup != "blank":
            pieces = [] if pieces is None else pieces
            pieces.append(_unquoted(match))
        elif pieces is not None:
            words.append("".join(pieces))
            pieces = None
    return words if pieces is None else [*words, "".join(pieces)]


def _unquoted(match: re.Match[str]) -> str:
    """Return the text of a piece.

    Within double quotes, a backslash escapes only the quote and itself.
    """
    text = match[match.lastgroup or 0]
    return _ESCAPED.sub(r"\1", text) if match.lastgroup == "double" else text
