"""Arguments of `box-guest` as requests to the agent."""

from __future__ import annotations

import socket
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from box_guest import cli, protocol

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def agent(path: Path, answers: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """A guest socket that gives these answers; yields what was asked."""
    asked: list[dict[str, Any]] = []
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()

        def serve() -> None:
            for answer in answers:
                peer, _ = listening.accept()
                with peer, peer.makefile("rb") as lines:
                    asked.append(protocol.decode(lines.readline()))
                    peer.sendall(protocol.encode({"type": "reply", "id": 1, **answer}))

        serving = threading.Thread(target=serve)
        serving.start()
        try:
            yield asked
        finally:
            serving.join()


@pytest.fixture(autouse=True)
def kept_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command changes its process; the test's own stays as it is."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cli, "name_process", lambda: None)


@pytest.mark.parametrize(
    ("words", "request_"),
    [
        (["info"], {"type": "info"}),
        (["workspace", "mount"], {"type": "workspace", "verb": "mount"}),
        (["pin"], {"type": "pin", "for_s": 7200, "why": ""}),
        (["pin", "--for", "1d"], {"type": "pin", "for_s": 86400, "why": ""}),
        (
            ["pin", "--why", "a build", "--for", "1h30m5s"],
            {"type": "pin", "for_s": 5405, "why": "a build"},
        ),
        (["unpin"], {"type": "unpin"}),
        (["auto-suspend", "off"], {"type": "auto_suspend", "on": False}),
        (["auto-suspend", "on"], {"type": "auto_suspend", "on": True}),
    ],
)
def test_requests(tmp_path: Path, words: list[str], request_: dict[str, Any]) -> None:
    path = tmp_path / "s"
    with agent(path, [{"ok": True, "result": {}}]) as asked:
        assert cli.main(["--socket", str(path), *words]) == 0
    assert asked == [{**request_, "id": 1}]
    if request_["type"] != "info":
        assert protocol.request_parameters(request_) == {
            key: value for key, value in request_.items() if key != "type"
        }


def test_answers_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "s"
    result = {"pinned_until": "2026-01-01T00:00:00Z", "pin_why": "a build", "auto_suspend": True}
    with agent(path, [{"ok": True, "result": result}, {"ok": False, "error": "no more pins"}]):
        assert cli.main(["--socket", str(path), "pin"]) == 0
        assert cli.main(["--socket", str(path), "pin"]) == 1
    out, err = capsys.readouterr()
    assert out == "pinned_until: 2026-01-01T00:00:00Z\npin_why: a build\nauto_suspend: on\n"
    assert err == "box-guest: no more pins\n"


def test_a_question_waits_for_its_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli, "ASK_PAUSE_S", 0)
    path = tmp_path / "s"
    answers: list[dict[str, Any]] = [
        {"ok": True, "result": {"ask": "0f3a"}},
        {"ok": True, "result": {"state": "open", "answer": None}},
        {"ok": False, "error": "there is no tunnel"},
        {"ok": True, "result": {"state": "answered", "answer": "yes"}},
    ]
    with agent(path, answers) as asked:
        assert cli.main(["--socket", str(path), "ask", "Go on?", "--option", "yes"]) == 0
    question = {"type": "ask", "id": 1, "question": "Go on?", "options": ["yes"]}
    assert asked == [question, *[{"type": "ask_state", "id": 1, "ask": "0f3a"}] * 3]
    assert capsys.readouterr().out == "yes\n"


def test_a_question_that_nobody_answers_ends(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli, "ASK_PAUSE_S", 0)
    monkeypatch.setattr(cli, "ASK_FAILURES", 2)
    path = tmp_path / "s"
    asked = {"ok": True, "result": {"ask": "0f3a"}}
    expired = {"ok": True, "result": {"state": "expired", "answer": None}}
    failed = {"ok": False, "error": "there is no tunnel"}
    for answers, text in (([asked, expired], "expired"), ([asked, failed, failed], "no tunnel")):
        with agent(path, answers):
            assert cli.main(["--socket", str(path), "ask", "Go on?"]) == 1
        path.unlink()
        assert text in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        *(["pin", "--for", text] for text in ("", "2", "h", "2x", "-2h", "1.5h", "2h 1m", "1m1h")),
        ["pin", "--for"],
        ["pin", "two hours"],
        ["auto-suspend"],
        ["auto-suspend", "maybe"],
        ["unpin", "all"],
        ["ask"],
        ["ask", "one", "two"],
    ],
    ids=" ".join,
)
def test_usage(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(words)
    assert ended.value.code == 2
    assert "usage: box-guest" in capsys.readouterr().err


def test_an_unknown_command_suggests_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as usage:
        cli.main(["unpn"])
    assert usage.value.code == 2
    assert "Did you mean unpin?" in capsys.readouterr().err
