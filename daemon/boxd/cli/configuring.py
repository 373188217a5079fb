"""The command `boxd config`: the settings in effect, and an example of the settings file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from boxd import log
from boxd.cli.parsers import EVERYTHING, parent
from boxd.cli.printing import print_table
from boxd.cli.settings import settings_of
from boxd.config import default_text, flags

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from boxd.cli.parsers import Commands
    from boxd.cli.settings import Setting
    from boxd.config import Config
    from boxd.names.flag import Flag

HIDDEN = "(hidden)"
HEAD = """\
# Settings of the Box Service. The keys are the flags of `boxd serve` without their dashes. A flag
# of the command line precedes the file. `boxd config` prints the settings in effect.
# After a change, run: systemctl restart boxd
# A value with a password needs a file that only root can read: chmod 600 boxd.toml
"""
_PACKAGED = {"api-addr": '"127.0.0.1:8080"', "workspace-automount": "true"}
"""Settings that the example sets: those of `make up`."""


def add(commands: Commands) -> None:
    """Add the command to a parser."""
    text = "print the settings in effect and the source of each; takes the flags of serve"
    command = commands.add_parser("config", parents=[parent(EVERYTHING)], help=text)
    command.add_argument(
        "--example", action="store_true", help="print an example of the settings file instead"
    )
    command.set_defaults(run=config)


def config(config: Config, arguments: argparse.Namespace) -> int:
    """Print a table of all settings, or an example of the settings file; return 0."""
    del config
    if arguments.example:
        print(example(), end="")
        return 0
    settings = settings_of(arguments)
    print_table([("SETTING", "VALUE", "SOURCE"), *_rows(settings)])
    return 0


def example() -> str:
    """Return a settings file with every setting and its help; most are comments."""
    parts, group = [HEAD], None
    for field_name, flag in flags():
        if flag.group is not group:
            group = flag.group
            parts.append(f"\n# --- {group.value} ---\n")
        default = _default(field_name, flag)
        parts.append(f"\n# {flag.help} (default: {default})\n")
        if flag.key in _PACKAGED:
            parts.append(f"{flag.key} = {_PACKAGED[flag.key]}\n")
        else:
            parts.append(f"# {flag.key} = {_example_value(flag, default)}\n")
    return "".join(parts)


def _example_value(flag: Flag, default: str) -> str:
    """Return the default as a value of TOML, or the kind of value if the default is none."""
    if flag.is_switch:
        return default
    if flag.is_list:
        return f'["{str(flag.metavar).removesuffix(",...")}"]'
    return f'"{default if flag.default is None else flag.metavar}"'


def _default(field_name: str, flag: Flag) -> str:
    return "false" if flag.is_switch else default_text(field_name, flag)


def _rows(settings: dict[str, Setting]) -> Iterator[tuple[str, str, str]]:
    for field_name, flag in flags():
        setting = settings.get(field_name)
        if setting is None:
            yield flag.key, _default(field_name, flag), "default"
        elif setting.flag is flag:
            yield flag.key, _shown(setting), setting.source


def _shown(setting: Setting) -> str:
    """Return the value of a setting without secrets."""
    hides = setting.flag.holds_secret
    if hides is not None and hides(setting.text):
        return HIDDEN
    return log.escape(log.redact(setting.text))
