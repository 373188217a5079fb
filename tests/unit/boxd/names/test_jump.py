"""The name of the front door in texts."""

from __future__ import annotations

import pytest

from boxd.names.jump import named, spelled

TEXT = "box web is confidential; use ssh -J jump@HOST root@web"


@pytest.mark.parametrize(
    ("host", "port", "shown"),
    [
        ("boxes.example.net", 22, "jump@boxes.example.net root@web"),
        ("boxes.example.net", 2222, "jump@boxes.example.net:2222 root@web"),
        ("2001:db8::1", 22, "jump@[2001:db8::1] root@web"),
        ("2001:db8::1", 2222, "jump@[2001:db8::1]:2222 root@web"),
    ],
)
def test_the_placeholder_becomes_a_host_that_ssh_takes(host: str, port: int, shown: str) -> None:
    assert named(TEXT, host, port) == f"box web is confidential; use ssh -J {shown}"


def test_other_texts_stay() -> None:
    assert named("jump at the host", "boxes.example.net", 22) == "jump at the host"


def test_commands_of_the_cli_are_spelled_out_at_the_end_alone() -> None:
    assert spelled("no box 'x'; see: ls", "ssh cli@HOST") == "no box 'x'; see: ssh cli@HOST ls"
    assert spelled("see: nothing", "ssh cli@HOST") == "see: nothing"
