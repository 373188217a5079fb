"""S2 on a real service: each secret is used through every door, then looked for everywhere.

The search reads every file of the installation (logs, database with its write-ahead log, objects,
memories of sleeping boxes), the command line and environment of every process, the query texts that
PostgreSQL shows, and the answers to requests that fail. Each search also looks for a text that has
to be there, so that a search that sees nothing fails.

Not covered here: core files (boxes and servers have none), the memory of living processes
(`tests/ssh/access/test_jump_secrecy.py`, `tests/integration/boxd/service/test_delegate_box.py`).
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote, urlsplit

import asyncpg
import psutil
import pytest

from boxd.embedded.postgres_cluster import Cluster
from boxd.embedded.postgres_settings import DATABASE
from tests.harness.mounts.drive import until
from tests.harness.service.port_program import START
from tests.harness.service.user import User

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.harness.service.daemon import Daemon

pytestmark = [pytest.mark.timeout(300), pytest.mark.promise("S2")]
OWNER_SECRET = "canary-owner-secret-5f21c0"
MCP_SECRET = "canary-secret-by-mcp-83ab19"
COMMAND = "canary-command-text-7d03e2"
VARIABLE = "canary-command-variable-91c7f4"
INPUT = "canary-command-input-c44e08"
BOX = "canary-box-name"
"""No secret: the control of each search."""
OF_THE_OWNER = frozenset({"owner's secret", "secret by MCP"})
"""Sessions in the owner's boxes get these."""
SHORTEST = 16
"""Characters; a shorter word of a private file may stand anywhere by chance."""


@dataclass
class Traces:
    """One owner's use of a service, with all secrets that were part of it by their names."""

    daemon: Daemon
    user: User
    secrets: dict[str, str] = field(default_factory=dict)
    answers: dict[str, str] = field(default_factory=dict)
    """Texts that the service gave to clients, by what was asked."""

    def use_ssh(self) -> None:
        """A box, a secret, a share and an API key, by the management CLI."""
        self.user.ssh(BOX, "true")
        line = self.user.command("cli", "secret set TOKEN")
        subprocess.run(line, check=True, input=OWNER_SECRET.encode(), timeout=60)
        self.secrets["owner's secret"] = OWNER_SECRET
        assert self.user.ssh(BOX, "echo $TOKEN") == OWNER_SECRET
        self.secrets["API key"] = self.user.ssh("cli", "apikeys create laptop").split()[-1]
        share = self.user.ssh("cli", f"share {BOX}")
        (token,) = {word.split("@")[0] for word in share.split() if word.startswith("svcs_")}
        self.secrets["share"] = token
        for command in ("ls", "ls --json", f"info {BOX}", "secret ls", "apikeys ls", "share ls"):
            self.answers[command] = self.user.ssh("cli", command)
        bad = self.user.command("cli", "secret set 'NOT A NAME'")
        done = subprocess.run(
            bad, check=False, input=OWNER_SECRET, capture_output=True, text=True, timeout=60
        )
        assert done.returncode != 0
        self.answers["secret set with a bad name"] = done.stdout + done.stderr

    def use_http(self) -> None:
        """A command with its variables and input, a cookie, and requests that fail."""
        key = self.secrets["API key"]
        self.secrets |= {"command": COMMAND, "variable": VARIABLE, "input": INPUT}
        head = {"cmd": f": {COMMAND}; cat >/dev/null", "env": {"WORD": VARIABLE}}
        exec_type = {"Content-Type": "application/x-svc-exec"}
        path = f"/v1/exec/{BOX}?stream=false"
        status, _ = self.ask("POST", path, exec_type, f"{json.dumps(head)}\n{INPUT}")
        assert status == 200
        for name, broken in (
            ("bad variable", json.dumps(head | {"env": {"1 2": VARIABLE}})),
            ("bad timeout", json.dumps(head | {"timeout_s": VARIABLE})),
            ("no JSON", json.dumps(head)[:-1]),
        ):
            status, _ = self.ask("POST", path, exec_type, f"{broken}\n{INPUT}", name=name)
            assert status == 400
        self.user.ssh(BOX, f"bash -s <<'SCRIPT'\n{START}\nSCRIPT")
        port = f"/v1/boxes/{BOX}/proxy/3000/?key={key}"
        status, cookies = self.ask("GET", port, {"Authorization": ""}, name="proxy")
        assert status == 200
        self.secrets["cookie"] = cookies.partition("svc_proxy=")[2].partition(";")[0]
        with_cookie = {"Authorization": "", "Cookie": f"svc_proxy={self.secrets['cookie']}"}
        assert self.ask("GET", "/v1/boxes", with_cookie, name="cookie elsewhere")[0] == 401
        refused = {"Authorization": ""}
        assert self.ask("GET", f"/v1/wrk/?key={key}", refused, name="key in query")[0] == 401
        assert self.ask("GET", f"/v1/mcp?key={key}x", refused, name="wrong key")[0] == 401
        assert self.ask("GET", "/v1/boxes", name="list")[0] == 200

    def use_mcp(self) -> None:
        """A secret by its tool, and one that the tool refuses."""
        self.secrets["secret by MCP"] = MCP_SECRET
        begin = {
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": {"name": "test", "version": "1"},
        }
        good = {"name": "BY_MCP", "value": MCP_SECRET}
        calls = [
            ("initialize", begin),
            ("tools/call", {"name": "secret_set", "arguments": good}),
            ("tools/call", {"name": "secret_set", "arguments": good | {"name": "NOT A NAME"}}),
            ("tools/call", {"name": "secret_list", "arguments": {"workspace": 7, **good}}),
        ]
        lines = [
            json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params})
            for number, (method, params) in enumerate(calls)
        ]
        ready = json.dumps({"jsonrpc": "2.0", "method": "notifications/initialized"})
        lines.insert(1, ready)
        with subprocess.Popen(
            self.user.command("cli", "mcp"), stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as session:
            assert session.stdin is not None
            assert session.stdout is not None
            session.stdin.write("".join(f"{line}\n" for line in lines).encode())
            session.stdin.flush()
            answers = {
                answer["id"]: answer
                for answer in (json.loads(session.stdout.readline()) for _ in calls)
            }
            session.stdin.close()
        assert not answers[1]["result"].get("isError")
        self.answers["MCP"] = json.dumps(answers)

    def use_operator(self, folder: Path) -> None:
        """The credentials of the owner's volume, and the private files of the service."""
        listed = self.daemon.run("volumes", "ls")
        volume = listed.stdout.splitlines()[1].split()[0]
        file = folder / "credentials"
        assert self.daemon.run("volumes", "credentials", volume, str(file)).returncode == 0
        for name, word in words_of(file.read_text()):
            self.secrets[f"volume's {name}"] = word
        file.unlink()
        self.secrets["database password"] = (self.daemon.state / "postgres/password").read_text()
        # The lines before are alike in all keys, or the public half.
        lines = (self.daemon.state / "keys/ssh_host_ed25519").read_text().splitlines()
        self.secrets["SSH host key"] = lines[4]

    def ask(
        self,
        method: str,
        path: str,
        headers: dict[str, str] | None = None,
        body: str | None = None,
        *,
        name: str | None = None,
    ) -> tuple[int, str]:
        """Status and Set-Cookie of an HTTP request; its text is kept under `name`."""
        key = f"Bearer {self.secrets['API key']}"
        all_headers = {"Authorization": key, **(headers or {})}
        sent = {field: value for field, value in all_headers.items() if value}
        connection = http.client.HTTPConnection("127.0.0.1", self.daemon.api_port, timeout=30)
        try:
            connection.request(method, path, body=body, headers=sent)
            answer = connection.getresponse()
            text = answer.read().decode()
        finally:
            connection.close()
        if name is not None:
            self.answers[name] = text
        return answer.status, answer.headers.get("Set-Cookie", "")


def words_of(credentials: str) -> Iterable[tuple[str, str]]:
    """What is secret in a file of a volume's credentials."""
    parts = json.loads(credentials)
    for name, value in sorted(walk(parts)):
        if value.startswith("postgres"):
            yield "password", unquote(urlsplit(value).password or "")
        elif "secret" in name:
            yield name, value


def walk(value: object, name: str = "") -> Iterable[tuple[str, str]]:
    """All strings of a JSON value with the names above them."""
    if isinstance(value, dict):
        for key, part in value.items():
            yield from walk(part, f"{name} {key}".strip())
    elif isinstance(value, str):
        yield name, value


@pytest.fixture(scope="module")
def traces(daemon: Daemon, tmp_path_factory: pytest.TempPathFactory) -> Traces:
    """A service that was used, at rest: no session is open and the box sleeps."""
    folder = tmp_path_factory.mktemp("secrets")
    made = Traces(daemon, User(daemon, folder))
    made.use_ssh()
    made.use_http()
    made.use_mcp()
    made.use_operator(folder)
    short = [name for name, word in made.secrets.items() if len(word) < SHORTEST]
    assert not short, f"these were not read: {short}"
    until(lambda: made.user.boxes()[BOX]["attached"] == 0, 30)
    return made


def files_holding(daemon: Daemon, words: dict[str, str]) -> dict[str, set[str]]:
    """By name: files of the installation in which a word stands, relative to its directory.

    grep reads the words from a pipe: a command line would be one more place that has them.
    """
    top = daemon.state.parent
    command = ["grep", "-raoFs", "--devices=skip", "-f", "-", str(top)]
    lines = "\n".join(words.values())
    done = subprocess.run(command, check=False, input=lines.encode(), capture_output=True)
    places: dict[str, set[str]] = {name: set() for name in words}
    for line in done.stdout.decode().splitlines():
        place, _, match = line.rpartition(":")
        for name, word in words.items():
            if word in match:
                places[name].add(str(Path(place).relative_to(top)))
    return places


def leaks(daemon: Daemon, secrets: dict[str, str]) -> dict[str, list[str]]:
    """By name: files outside of a secret's home that hold it, as it is or percent-encoded."""
    encoded = {name: quote(word, safe="") for name, word in secrets.items()}
    outside_home: dict[str, list[str]] = {}
    for words in (secrets, encoded) if encoded != secrets else (secrets,):
        for name, places in files_holding(daemon, words).items():
            if outside := places - ALLOWED_FILES.get(name, set()):
                outside_home.setdefault(name, []).extend(sorted(outside))
    return outside_home


ALLOWED_FILES = {
    "database password": {"state/postgres/password"},
    "SSH host key": {"state/keys/ssh_host_ed25519"},
    # The object server checks signatures with it.
    "volume's store secret_key": {"state/objects/server/keys.json"},
}
"""Where a secret of the service itself has its home, readable by root alone."""


def test_no_file_of_the_installation_holds_a_secret(traces: Traces) -> None:
    """Neither logs nor databases nor objects; the disk of the box was given none."""
    box_id = str(traces.user.boxes()[BOX]["id"])
    control = files_holding(traces.daemon, {"name": BOX, "id": box_id})
    assert "log" in control["id"]
    assert any(place.startswith("state/postgres/data/") for place in control["name"])
    assert leaks(traces.daemon, traces.secrets) == {}
    for places in ALLOWED_FILES.values():
        for place in places:
            assert (traces.daemon.state.parent / place).stat().st_mode & 0o077 == 0


def test_no_process_shows_a_secret(traces: Traces) -> None:
    """Command lines and environments, those of the box's own processes included.

    Programs that the owner started in the box have the owner's secrets in their environment: that
    is what these are for.
    """
    here = os.readlink("/proc/self/ns/pid")
    shown: dict[str, str] = {}
    for process in psutil.process_iter():
        try:
            place = "host" if os.readlink(f"/proc/{process.pid}/ns/pid") == here else "box"
            words = [*process.cmdline(), *process.environ().values()]
            shown[f"{place} {process.pid} {process.name()}"] = " ".join(words)
        except (psutil.NoSuchProcess, psutil.AccessDenied, OSError):
            continue
    assert any(str(traces.daemon.state) in text for text in shown.values())
    assert any(OWNER_SECRET in text for text in shown.values())
    for name, secret in traces.secrets.items():
        holders = {place for place, text in shown.items() if secret in text}
        if name in OF_THE_OWNER:
            holders = {place for place in holders if not place.startswith("box")}
        assert not holders, f"{name} is shown by {holders}"


def test_no_answer_repeats_a_secret(traces: Traces) -> None:
    assert BOX in traces.answers["ls"]
    for asked, text in traces.answers.items():
        for name, secret in traces.secrets.items():
            assert secret not in text, f"the answer to {asked} shows the {name}"


def test_the_box_gets_no_credential_of_the_service(traces: Traces) -> None:
    """A new session has the owner's secrets; nothing else of the service."""
    script = "env; for p in /proc/[0-9]*; do tr '\\0' '\\n' < $p/environ; done; ls -la /run/box"
    text = traces.user.ssh(BOX, script)
    assert OWNER_SECRET in text
    for name, secret in traces.secrets.items():
        assert name in OF_THE_OWNER or secret not in text, f"the box's processes show the {name}"


def test_postgresql_shows_no_secret_in_its_queries(traces: Traces) -> None:
    cluster = Cluster(traces.daemon.state / "postgres")

    async def queries() -> str:
        connection = await asyncpg.connect(cluster.dsn(DATABASE))
        try:
            rows = await connection.fetch("SELECT query FROM pg_stat_activity")
        finally:
            await connection.close()
        return "\n".join(row["query"] or "" for row in rows)

    text = asyncio.run(queries())
    assert "pg_stat_activity" in text
    for name, secret in traces.secrets.items():
        assert secret not in text, f"PostgreSQL shows the {name}"


def test_a_box_that_sleeps_leaves_what_its_sessions_had(traces: Traces) -> None:
    """The memory of a sleeping box may hold what its sessions had (SECURITY says so), and nothing
    that no session had: no key, share, cookie or credential of a volume."""
    traces.user.ssh("cli", f"suspend {BOX}")
    of_sessions = OF_THE_OWNER | {"command", "variable", "input"}
    others = {name: word for name, word in traces.secrets.items() if name not in of_sessions}
    assert leaks(traces.daemon, others) == {}
