"""The client before a real service with real boxes, in both forms."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from boxd_client import (
    AsyncClient,
    Client,
    CommandFailed,
    Exit,
    InvalidRequest,
    NotFound,
    Output,
    Unauthorized,
)
from tests.harness.clients.forms import blocking
from tests.harness.documents.readme import blocks

if TYPE_CHECKING:
    from collections.abc import Callable

    Call = Callable[[Callable[[Any], Any]], Any]

README = Path(__file__).parents[3] / "clients/python/README.md"
pytestmark = pytest.mark.timeout(300)


def test_three_lines_to_a_first_command(client: Call) -> None:
    assert client(lambda c: c.box("dev").exec("hostname; echo oops >&2; exit 3")).exit_code == 3
    assert client(lambda c: c.box("dev").exec("hostname")).stdout == "dev\n"


def test_the_programs_of_the_readme(url: str, key: str) -> None:
    programs = [block for block in blocks(README) if block.language == "python"]
    assert len(programs) == 2
    for program in programs:
        done = subprocess.run(
            [sys.executable, "-c", program.text],
            env=os.environ | {"BOXD_URL": url, "BOXD_API_KEY": key},
            capture_output=True,
            text=True,
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert re.search("^Linux dev|exit code [0-9]+", done.stdout)


def test_a_failed_command_with_check(client: Call) -> None:
    with pytest.raises(CommandFailed, match="code 3: oops") as caught:
        client(lambda c: c.box("dev").exec("echo oops >&2; exit 3", check=True))
    assert caught.value.result.stderr == "oops\n"


def test_input_and_environment(client: Call) -> None:
    data = os.urandom(1_000_000)
    result = client(lambda c: c.box("dev").exec("sha256sum; echo $A", stdin=data, env={"A": "é"}))
    assert result.stdout.split() == [hashlib.sha256(data).hexdigest(), "-", "é"]
    pieces = [data[:1], data[1:500_000], data[500_000:]]
    result = client(lambda c: c.box("dev").exec("sha256sum", stdin=pieces))
    assert result.stdout.split()[0] == hashlib.sha256(data).hexdigest()


def test_output_is_exact(client: Call) -> None:
    result = client(lambda c: c.box("dev").exec("head -c 3000000 /dev/urandom | tee /tmp/r"))
    total = client(lambda c: c.box("dev").exec("sha256sum /tmp/r")).stdout.split()[0]
    assert hashlib.sha256(result.stdout_bytes).hexdigest() == total


def test_a_stream(client: Call) -> None:
    events = client(lambda c: c.box("dev").stream("echo out; exit 4"))
    assert events == [Output("stdout", b"out\n", "out\n"), Exit(4)]


def test_a_timeout_of_a_command(client: Call) -> None:
    assert client(lambda c: c.box("dev").exec("sleep 1000", timeout=1)).exit_code == 124


def test_boxes(client: Call) -> None:
    client(lambda c: c.box("other").exec("true"))
    boxes = client(lambda c: c.boxes.list())
    assert "other" in {box.ref for box in boxes}
    assert client(lambda c: c.box("other").keep()).durable
    assert not client(lambda c: c.box("other").keep(off=True)).durable
    client(lambda c: c.box("other").remove())
    with pytest.raises(NotFound):
        client(lambda c: c.box("other").remove())


def test_a_wrong_key(url: str) -> None:
    with pytest.raises(Unauthorized, match="invalid API key"):
        blocking(url, lambda c: c.boxes.list(), key="svc_wrong")


def test_a_spec_is_no_reference(client: Call) -> None:
    with pytest.raises(InvalidRequest, match=r"boxes\.create"):
        client(lambda c: c.box("dev+"))


def test_the_drive(client: Call) -> None:
    data = os.urandom(700_000)
    client(lambda c: c.drive().write("deep/ü b.bin", data))
    assert client(lambda c: c.drive().read("deep/ü b.bin")) == data
    assert client(lambda c: c.drive().read("deep/ü b.bin", start=5, end=9)) == data[5:9]
    assert client(lambda c: c.drive().read("deep/ü b.bin", start=699_990)) == data[699_990:]
    stat = client(lambda c: c.drive().stat("deep/ü b.bin"))
    assert stat.size == len(data)
    assert stat.etag
    pieces = [data[:10], data[10:]]
    client(lambda c: c.drive().write("deep/pieces", pieces))
    assert client(lambda c: c.drive().read("deep/pieces")) == data
    client(lambda c: c.drive().write("deep/text", "héllo"))
    assert client(lambda c: c.drive().read_text("deep/text")) == "héllo"
    client(lambda c: c.drive().make_directory("deep/empty"))
    assert (
        client(lambda c: c.box("dev").exec("ls /wrk/deep")).stdout
        == "empty\npieces\ntext\nü b.bin\n"
    )
    assert client(lambda c: c.drive().exists("deep/text"))
    client(lambda c: c.drive().remove("deep"))
    assert not client(lambda c: c.drive().exists("deep/text"))
    with pytest.raises(NotFound):
        client(lambda c: c.drive().read("deep/text"))


def test_a_port(client: Call) -> None:
    client(lambda c: c.box("dev").exec("mkdir -p /srv/www && echo hi > /srv/www/a"))
    client(
        lambda c: c.box("dev").exec(
            "cd /srv/www && (setsid python3 -m http.server -b 127.0.0.1 8000 >/dev/null 2>&1 &)"
            "; until (exec 3<>/dev/tcp/127.0.0.1/8000) 2>/dev/null; do sleep 0.05; done; true"
        )
    )
    answer = client(lambda c: c.box("dev").request(8000, path="/a?x=1"))
    assert (answer.status, answer.body) == (200, b"hi\n")
    assert client(lambda c: c.box("dev").request(8000, path="/b")).status == 404
    assert client(lambda c: c.box("dev").request(8001)).status == 502


def test_a_terminal_without_a_box(url: str, key: str) -> None:
    with Client(url, key) as client, pytest.raises(NotFound), client.box("nowhere").terminal():
        pass


def test_a_terminal(url: str, key: str) -> None:
    with Client(url, key) as client:
        client.box("dev").exec("true")
        with client.box("dev").terminal(100, 30) as terminal:
            terminal.resize(120, 40)
            terminal.write(b"stty size; echo done-$((40 + 2)); exit 7\n")
            text = b""
            while data := terminal.read():
                text += data
            assert terminal.exit_code == 7
    assert b"40 120" in text
    assert b"done-42" in text


async def test_an_asynchronous_terminal(url: str, key: str) -> None:
    async with AsyncClient(url, key) as client:
        await client.box("dev").exec("true")
        async with client.box("dev").terminal() as terminal:
            await terminal.write(b"exit 6\n")
            while await terminal.read():
                pass
            assert terminal.exit_code == 6
