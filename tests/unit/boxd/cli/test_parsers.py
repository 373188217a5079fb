"""Every field of the configuration declares its flags; the help comes from there."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import fields
from typing import TYPE_CHECKING

import pytest

from boxd.cli import main
from boxd.cli.parsers import EVERYTHING, parent
from boxd.cli.settings import config_of
from boxd.config import Config, default_text, default_value, flags
from boxd.errors import BadRequest

if TYPE_CHECKING:
    from boxd.names.flag import Flag

ALL = list(flags())
WITH_VALUE = [(name, flag) for name, flag in ALL if flag.metavar is not None]


def _ids(case: tuple[str, Flag]) -> str:
    return case[1].name


def test_every_field_has_a_flag_with_help() -> None:
    groups = {name.partition(".")[0] for name, _ in ALL}
    assert groups == {field.name for field in fields(Config)}
    for _, flag in ALL:
        assert flag.name.startswith("--")
        assert flag.help
        assert not flag.help.endswith(".")


def test_no_flag_is_declared_twice() -> None:
    names = [name for _, flag in ALL for name in (flag.name, *flag.aliases)]
    assert len(names) == len(set(names))


def test_the_default_of_a_choice_is_a_choice() -> None:
    for name, flag in ALL:
        if flag.choices:
            assert default_value(name) in flag.choices


@pytest.mark.parametrize("case", WITH_VALUE, ids=_ids)
def test_the_shown_default_is_the_default(case: tuple[str, Flag]) -> None:
    name, flag = case
    text = default_text(name, flag)
    if flag.default is None:
        value = text if flag.parse is None else flag.parse(text, flag.name)
        assert value == default_value(name)
    else:
        with suppress(BadRequest):  # a default in words: a bad value, or the name of no file
            parsed = text if flag.parse is None else flag.parse(text, flag.name)
            assert parsed == default_value(name) or default_value(name) is None


def test_help_shows_every_flag_and_its_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "2000")  # argparse wraps lines at hyphens
    text = " ".join(parent(EVERYTHING).format_help().split())
    for name, flag in ALL:
        assert flag.name in text
        assert flag.help in text
        if not flag.is_switch:
            assert f"(default: {default_text(name, flag)})" in text


def test_a_command_without_a_flag_has_its_default() -> None:
    config = config_of(main.parser().parse_args(["images", "build", "debian"]))
    assert config == Config()


@pytest.mark.parametrize(
    ("flag", "value"), [("--no-drive", "drive"), ("--no-templates", "templates")]
)
def test_a_switch_inverts_the_default(flag: str, value: str) -> None:
    config = config_of(main.parser().parse_args(["serve", flag]))
    assert getattr(config, value) is False


@pytest.mark.parametrize("flag", ["--backup-keep", "--max-running"])
def test_a_bad_count_names_the_flag(flag: str) -> None:
    with pytest.raises(BadRequest, match=f"{flag} must be a whole number of at least 1, not many"):
        config_of(main.parser().parse_args(["serve", flag, "many"]))


@pytest.mark.parametrize("text", ["app.example.com", "https://app.example.com/x", "https://[", "*"])
def test_a_bad_origin_is_named(text: str) -> None:
    with pytest.raises(BadRequest, match=r"--api-origins: .*https://app\.example\.com"):
        config_of(main.parser().parse_args(["serve", "--api-origins", text]))
