"""`box completion`: scripts for bash, zsh and fish. They call `box __complete words WORD...`."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from boxd_client._sync.client import Client
from boxd_client.errors import BoxError
from boxd_client.protocol import RetryPolicy

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from boxd_client.cli.context import Context

TIMEOUT_S = 3.0
BASH = """\
_box() {
    local IFS=$'\\n'
    COMPREPLY=($(box __complete words "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
    if [ ${#COMPREPLY[@]} -eq 0 ]; then compopt -o default; fi
}
complete -F _box box
"""
ZSH = """\
#compdef box
_box() {
    local -a candidates
    candidates=("${(@f)$(box __complete words "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    if [[ -n "${candidates[1]}" ]]; then compadd -Q -- "${candidates[@]}"; else _files; fi
}
compdef _box box
"""
FISH = """\
function __box_complete
    set -l words (commandline -opc) (commandline -ct)
    box __complete words $words[2..-1] 2>/dev/null
end
complete -c box -a '(__box_complete)'
"""
SCRIPTS = {"bash": BASH, "zsh": ZSH, "fish": FISH}
BOX_ARGUMENTS = frozenset({"box", "boxes"})


def completion(context: Context) -> int:
    """Print the script of a shell."""
    sys.stdout.write(SCRIPTS[context.args.shell])
    return 0


def complete(parser: argparse.ArgumentParser, words: Sequence[str]) -> int:
    """Print the candidates for the last word, one a line."""
    *before, last = words or [""]
    for candidate in sorted(set(_candidates(parser, before, last))):
        if candidate.startswith(last):
            sys.stdout.write(candidate + "\n")
    return 0


def _candidates(parser: argparse.ArgumentParser, before: Sequence[str], last: str) -> Iterator[str]:
    commands = _commands(parser)
    if not before:
        yield from commands
        return
    command = commands.get(before[0])
    if command is None:
        return
    if last.startswith("-"):
        for action in command._actions:
            yield from action.option_strings
        return
    place = len([word for word in before[1:] if not word.startswith("-")])
    positionals = [action for action in command._actions if not action.option_strings]
    if not positionals:
        return
    action = positionals[min(place, len(positionals) - 1)]
    if action.choices is not None:
        yield from (str(choice) for choice in action.choices)
    elif action.dest in BOX_ARGUMENTS:
        yield from _boxes()
    elif action.dest in ("source", "target"):
        yield from (f"{name}:" for name in _boxes())


def _commands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return {name: one for name, one in action.choices.items() if not name.startswith("_")}
    return {}


def _boxes() -> list[str]:
    """Return the references of boxes; none if the service does not answer at once."""
    try:
        with Client(timeout=TIMEOUT_S, retries=RetryPolicy(attempts=1)) as client:
            return [box.ref for box in client.boxes.list()]
    except BoxError:
        return []  # a completion has no place for an error
