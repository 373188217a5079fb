"""The command `box` before a real service: pipes, terminals, copies, ports, completion."""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import re
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.harness.clients.command import BOX, BoxCommand

if TYPE_CHECKING:
    from pathlib import Path

    from tests.harness.documents.terminal import Shell

from tests.harness.documents.terminal import open_shell

pytestmark = pytest.mark.timeout(300)
SERVE = (
    "cd /srv && (setsid python3 -m http.server -b 127.0.0.1 8000 >/dev/null 2>&1 &)"
    "; until (exec 3<>/dev/tcp/127.0.0.1/8000) 2>/dev/null; do sleep 0.05; done"
)


@pytest.fixture
def box(tmp_path: Path, url: str, key: str) -> BoxCommand:
    """Return the command, configured as `box login` does it."""
    command = BoxCommand(tmp_path)
    assert "the key reaches" in command.text("login", url, stdin=key.encode() + b"\n")
    return command


def tree(root: Path) -> dict[str, str]:
    return {
        str(path.relative_to(root)): (
            str(path.readlink())
            if path.is_symlink()
            else hashlib.sha256(path.read_bytes()).hexdigest()
            if path.is_file()
            else "folder"
        )
        for path in root.rglob("*")
    }


def test_the_configuration(box: BoxCommand, url: str, key: str) -> None:
    shown = json.loads(box.text("config", "--json"))
    assert shown["url"] == url
    assert key not in json.dumps(shown)
    file = box.home / ".config/boxd/config.toml"
    assert (shown["file"], file.stat().st_mode & 0o777) == (str(file), 0o600)
    error = box.text("login", url, stdin=b"svc_wrong\n", status=255)
    assert error == "box: invalid API key\n"
    box.variables["BOXD_API_KEY"] = "svc_wrong"
    assert json.loads(box.text("ls", "--json", status=255))["type"] == "Unauthorized"


def test_a_command_and_its_status(box: BoxCommand) -> None:
    done = box.run("run", "-n", "dev", "--", "sh", "-c", "echo out; echo err >&2; exit 3", status=3)
    assert (done.stdout, done.stderr) == (b"out\n", b"err\n")
    assert box.text("run", "-n", "-e", "A=b c", "dev", 'echo "$A" | cat') == "b c\n"
    assert box.text("run", "-n", "dev", "echo", "a  b") == "a  b\n"
    result = json.loads(box.text("run", "-n", "--json", "dev", "echo out; exit 4", status=4))
    assert result == {"exit_code": 4, "stdout": "out\n", "stderr": ""}
    box.run("run", "-n", "--timeout", "1", "dev", "sleep 1000", status=124)
    assert "no command" in box.text("run", "dev", status=255)


def test_boxes(box: BoxCommand) -> None:
    box.run("run", "-n", "other", "true")
    table = box.text("ls")
    assert re.search(r"^other +running +debian ", table, re.MULTILINE)
    assert "\x1b" not in table
    assert "other" in {one["ref"] for one in json.loads(box.text("ls", "--json"))}
    assert box.text("rm", "other") == "other removed\n"
    box.run("rm", "other", status=1)
    box.run("nonsense", status=2)


def test_copies_of_directories(box: BoxCommand) -> None:
    source = box.home / "source"
    (source / "a b" / "deep").mkdir(parents=True)
    (source / "a b" / "deep" / "é").write_bytes(os.urandom(3_000_000))
    (source / "script").write_text("#!/bin/sh\necho hi\n")
    (source / "script").chmod(0o755)
    (source / "link").symlink_to("a b")
    box.run("cp", "source", "dev:/tmp/copy")
    assert box.text("run", "-n", "dev", "/tmp/copy/script") == "hi\n"
    box.run("cp", "source", "dev:/tmp/copy")
    assert box.text("run", "-n", "dev", "ls /tmp/copy") == "a b\nlink\nscript\nsource\n"
    box.run("run", "-n", "dev", "rm -r /tmp/copy/source")
    box.run("cp", "dev:/tmp/copy", "back")
    assert tree(box.home / "back") == tree(source)
    done = json.loads(box.text("cp", "--json", "dev:/tmp/copy/a b/deep/é", "."))
    assert done["source"] == "dev:/tmp/copy/a b/deep/é"
    assert (box.home / "é").read_bytes() == (source / "a b" / "deep" / "é").read_bytes()


def test_copies_of_files(box: BoxCommand) -> None:
    (box.home / "note").write_text("one")
    box.run("cp", "note", "dev:")
    box.run("cp", "note", "dev:folder/new/name")
    assert box.text("run", "-n", "dev", "cat note folder/new/name") == "oneone"
    assert "nowhere: no such file" in box.text("cp", "dev:nowhere", ".", status=255)
    assert "no such file" in box.text("cp", "nowhere", "dev:", status=255)
    assert "must be NAME:PATH" in box.text("cp", "note", "other", status=255)
    assert "not a directory" in box.text("cp", "note", "dev:/none/", status=255)
    box.run("run", "-n", "dev", "mkdir -p many; cd many; seq 500 | xargs touch; mkfifo pipe")
    assert b"skipped many/pipe" in box.run("cp", "dev:many", "many").stderr
    assert len(list((box.home / "many").iterdir())) == 500


def test_a_port(box: BoxCommand) -> None:
    box.run("run", "-n", "dev", f"mkdir -p /srv/sub; echo hi > /srv/sub/a; {SERVE}")
    forward = subprocess.Popen(
        [*BOX, "port", "--local-port", "0", "--json", "dev", "8000"],
        stdout=subprocess.PIPE,
        env=box.environment,
    )
    with forward:
        assert forward.stdout is not None
        text = b""
        while b"}" not in text:
            piece = os.read(forward.stdout.fileno(), 65536)
            assert piece, "the command has ended"
            text += piece
        port = int(re.findall(r":(\d+)/", json.loads(text)["url"])[0])
        for path, status, body in (("/sub/a", 200, b"hi\n"), ("/none", 404, None)):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
            connection.request("GET", path)
            answer = connection.getresponse()
            assert answer.status == status
            assert body in (None, answer.read())
            connection.close()
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        connection.request("GET", "/sub")
        assert connection.getresponse().headers["location"] == "/sub/"
        connection.close()
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        connection.request("GET", "/sub/a", headers={"Host": "evil.example.com"})
        assert connection.getresponse().status == 400
        connection.close()
        forward.terminate()


def test_a_shell_on_a_terminal(box: BoxCommand) -> None:
    box.run("run", "-n", "dev", "true")
    words = " ".join(BOX)
    with open_shell(box.home, box.home) as shell:
        _configure(shell, box)
        shell.run("stty rows 30 cols 100; stty -a > before")
        shown = shell.run(
            f"{words} sh dev",
            [(r"root@dev:~# ", "stty size; echo $((40 + 2))\n"), (r"42\r\n", "exit 5\n")],
        )
        assert shown.status == 5
        assert "30 100" in shown.text
        assert shell.run("stty -a > after; cmp before after").status == 0


def test_a_shell_needs_a_terminal(box: BoxCommand) -> None:
    assert "needs a terminal" in box.text("sh", "dev", status=255)


def test_colours_are_for_terminals(box: BoxCommand) -> None:
    box.run("run", "-n", "dev", "true")
    with open_shell(box.home, box.home) as shell:
        _configure(shell, box)
        assert "\x1b[1mNAME" in shell.run(f"{' '.join(BOX)} ls").text
        assert "\x1b" not in shell.run(f"NO_COLOR=1 {' '.join(BOX)} ls").text


def test_completion_in_bash(box: BoxCommand) -> None:
    box.run("run", "-n", "dev", "true")
    script = """
        complete_words() {
            COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
            _box 2>/dev/null; echo "${COMPREPLY[@]}"
        }
        complete_words box su; complete_words box sh d; complete_words box run --no
        complete_words box completion f
    """
    done = subprocess.run(
        ["bash", "-c", box.text("completion", "bash") + script],
        env=box.environment,
        capture_output=True,
        check=True,
    )
    assert done.stdout.decode().split("\n") == ["suspend", "dev", "--no-stdin", "fish", ""]
    for shell in ("zsh", "fish"):
        assert "box __complete words" in box.text("completion", shell)


def _configure(shell: Shell, box: BoxCommand) -> None:
    for name, value in box.environment.items():
        assert shell.run(f"export {name}='{value}'").status == 0
