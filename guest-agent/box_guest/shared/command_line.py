"""A command line parser that suggests the closest command for an unknown one."""

from __future__ import annotations

import argparse
import difflib

_MAX_TYPED = 64
"""Maximum length of a word to compare, in characters. The comparison takes quadratic time."""


class CommandParser(argparse.ArgumentParser):
    """An ArgumentParser whose errors suggest the closest choice. Subcommands use this class too."""

    def _check_value(self, action: argparse.Action, value: object) -> None:
        if action.choices is None or value in action.choices:
            return
        choices = [str(choice) for choice in action.choices]
        typed = str(value)
        near = difflib.get_close_matches(typed, choices, n=1) if len(typed) <= _MAX_TYPED else []
        suggestion = f" Did you mean {near[0]}?" if near else ""
        text = repr(typed[:_MAX_TYPED])
        raise argparse.ArgumentError(
            action, f"{text} is not one of: {', '.join(choices)}.{suggestion}"
        )
