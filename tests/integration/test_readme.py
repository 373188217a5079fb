"""README.md and docs/guide as one reader follows them: every command block, in reading order, in
one shell on a terminal, before a service on the default ports. The reader has a fresh home and a
fresh key.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.harness.clients.typescript import built_client
from tests.harness.documents.readme import blocks, pages
from tests.harness.documents.terminal import open_shell
from tests.harness.service.daemon import installation

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.harness.documents.readme import Block
    from tests.harness.documents.terminal import Reply, Shell
    from tests.harness.service.daemon import Daemon

pytestmark = pytest.mark.timeout(900)

ROOT = Path(__file__).parents[2]
NOT_RUN = {
    "README.md": 1,
    "agents.md": 4,
    "account.md": 3,
    "box-command.md": 2,
    "containers.md": 2,
    "mcp.md": 8,
    "previews.md": 1,
    "python.md": 1,
    "tasks.md": 1,
    "typescript.md": 2,
}
"""How many blocks of a page carry a reason why no test runs them."""
NOT_TYPED = {"text": "a picture"}
"""Languages of blocks that are no commands."""
INTERPRETERS = {"python": "python3 -", "ts": "NO_COLOR=1 node --input-type=module -"}
"""The programs that run blocks of other languages than `sh`."""
CLI = "ssh -p 2222 cli@127.0.0.1"
DEV = "ssh -p 2222 dev@127.0.0.1"
ACCEPT: Reply = (r"continue connecting \(yes/no/\[fingerprint\]\)\? ", "yes\n")
LEAVE: Reply = (r"root@[a-z]+:~# ", "exit\n")
"""Leaves a box's shell once its prompt is there."""
NEW_KEY: tuple[Reply, ...] = (("save the key", "\n"), ("Enter pass", "\n"), ("same pass", "\n"))


@dataclass(frozen=True)
class Step:
    """What one command of a page must do; its exit status is always 0.

    `command` is its beginning. `shows` is a pattern of its output. `effects` maps commands of the
    test to patterns of their output; `<name>` in a command is the group of that name in `shows`.
    """

    command: str
    shows: str = ""
    effects: dict[str, str] = field(default_factory=dict)
    replies: tuple[Reply, ...] = ()


FIVE_MINUTES = (
    Step(
        f"{DEV}   ",
        r"fingerprint is (?P<fingerprint>SHA256:\S+)\.\n(.*\n)*creating dev",
        {"cat make-up.log": "SSH host key +<fingerprint>", f"{CLI} ls": "dev .* running"},
        (ACCEPT, LEAVE),
    ),
    Step(f"{DEV} 'uname -a; df /wrk'", r"Linux dev .*\n.*\nwrk .* /wrk"),
    Step(f"{DEV} 'echo hello > /wrk/hello.txt'", "", {f"{DEV} cat /wrk/hello.txt": "hello"}),
    Step("echo note > notes.txt"),
    Step(
        "scp -P 2222 notes.txt dev@127.0.0.1:/wrk/",
        "",
        {
            f"{DEV} cat /wrk/notes.txt": "note",
            "scp -P 2222 dev@127.0.0.1:/wrk/hello.txt a && cat a": "hello",
            "echo 'put notes.txt /wrk/b' | sftp -P 2222 dev@127.0.0.1": "Uploading notes.txt",
            "echo 'get /wrk/b' | sftp -P 2222 dev@127.0.0.1 && cat b": "note",
            "rsync -e 'ssh -p 2222' notes.txt dev@127.0.0.1:/wrk/c": "",
            "rsync -e 'ssh -p 2222' dev@127.0.0.1:/wrk/c d && cat d": "note",
        },
    ),
    Step(f"{CLI} help", "Commands, for example: ssh -p 2222 cli@127.0.0.1 ls"),
    Step(f"{CLI} ls", "dev .* running"),
    Step("KEY=$(", "", {"echo $KEY": "^svc_[A-Za-z0-9]{40}$"}),
    Step("curl -H", "^hello$"),
    Step("curl -H", "", {f"{DEV} cat /wrk/from-outside.txt": "note"}),
    Step("ssh -p 2222 other@127.0.0.1", "^note$", {f"{CLI} ls": "other .* running"}),
)
SSH = (
    Step("ssh -p 2222 'api/web:debian:small^2h'", "^web$", {f"{CLI} ls -w api": "web .* small"}),
)
SSH_CONFIG = (
    Step(
        f"{CLI} ssh-config",
        "",
        {
            "ssh dev.box hostname": "^dev$",
            "scp notes.txt dev.box: && ssh dev.box cat notes.txt": "note",
        },
    ),
)
SHARE = (
    Step(
        f"{CLI} share dev",
        r"^(?P<open>ssh -p 2222 svcs_\S+)$(.|\n)*share rm (?P<share>\w+)",
        {
            "ssh-keygen -q -t ed25519 -N '' -f guest": "",
            "<open> -o IdentitiesOnly=yes -i guest hostname": "^dev$",
            f"{CLI} share ls": "<share>",
            f"{CLI} share rm <share>": "",
        },
    ),
)
SUSPEND = (
    Step(
        f"{CLI} suspend dev",
        "dev +suspended",
        {
            f"{CLI} resume dev": "dev +running",
            f"{DEV} 'setsid sleep 1000000 < /dev/null > /dev/null 2>&1 &'": "",
            f"{CLI} suspend dev ": "dev +suspended",
            f"{DEV} pgrep -f 1000000": "[0-9]",
        },
    ),
    Step(f"{CLI} stat", r"boxes +\d+ ", {f"{CLI} stat dev": "memory"}),
)
PIN = (
    Step(f"{CLI} pin other", "other .* build", {f"{CLI} info other": "pinned until: .*build"}),
    Step(
        f"{CLI} rm --force other",
        "removed other",
        {
            f"{CLI} ls": r"\A(?!(.|\n)*^other )",
            'curl -H "Authorization: Bearer $KEY" http://127.0.0.1:8080/v1/wrk/hello.txt': "hello",
        },
    ),
)
DRIVE = (
    Step(f"{DEV} 'date > /wrk/stamp.txt'"),
    Step(f"{CLI} up second", "second .* running"),
    Step("ssh -p 2222 second@127.0.0.1 cat", "[0-9]:[0-9]"),
    Step("curl -H", "[0-9]:[0-9]"),
)
TREE_SNAPSHOT = (
    Step("curl -X POST", "monday"),
    Step(f"{DEV} ls", "stamp.txt"),
    Step(f"{DEV} cp -a"),
)
TRASH = (
    Step(f"{DEV} 'rm /wrk/stamp.txt", "stamp.txt"),
    Step(f"{DEV} 'box-guest trash restore", "", {f"{DEV} cat /wrk/stamp.txt": "[0-9]:[0-9]"}),
)
TRASH_HTTP = (
    Step("curl -X DELETE"),
    Step("curl -H", "stamp.txt"),
    Step("curl -X POST", "old.txt", {f"{DEV} cat /wrk/old.txt": "[0-9]:[0-9]"}),
)
SECRETS = (
    Step("echo my-token"),
    Step(f"{CLI} secret set TOKEN", "TOKEN +account", {f"{DEV} 'echo $TOKEN'": "^my-token$"}),
)
SNAPSHOTS = (
    Step(
        f"{CLI} snapshot create dev before",
        "before +dev +disk, memory",
        {f"{CLI} ls": "dev .* running", f"{DEV} 'touch later; pkill -f 100000[0]'": ""},
    ),
    Step(
        f"{CLI} snapshot restore dev before",
        "kept as snapshot pre-restore",
        {
            f"{CLI} snapshot ls": "pre-restore",
            f"{DEV} 'pgrep -f 100000[0] && ! ls later'": "[0-9]",
        },
    ),
)
FORK = (
    Step(
        f"{CLI} snapshot fork dev",
        "copy .* running",
        {
            "ssh -p 2222 copy@127.0.0.1 'pgrep -f 100000[0] && cat notes.txt'": "note",
            f"{CLI} snapshot fork dev@before old": "old .* running",
        },
    ),
)
KEEP = (
    Step(f"{CLI} keep dev", "dev +yes +durable", {f"{CLI} ls": "dev .* durable"}),
    Step(
        "ssh -p 2222 'notes!'@127.0.0.1",
        "^notes$",
        {f"{CLI} ls": "notes .* durable", f"{CLI} keep --off dev": "dev +no"},
    ),
)
PROFILES = (
    Step(f"{CLI} profiles set quiet", "quiet +debian +large +5m .* none"),
    Step(
        f"{CLI} profiles build lab --from dev",
        "lab +debian",
        {"ssh -p 2222 x:lab@127.0.0.1 cat notes.txt": "note"},
    ),
    Step("ssh -p 2222 box:quiet@127.0.0.1", "", {f"{CLI} ls": "box .* large"}, (LEAVE,)),
    Step(f"{CLI} profiles set lasting", "lasting +debian .* yes"),
)
CONFIDENTIAL = (
    Step("ssh -J", "", {f"{CLI} info secret": "confidential"}, (ACCEPT, LEAVE)),
    Step("scp -J", "", {"ssh -J jump@127.0.0.1:2222 root@secret cat notes.txt": "note"}),
)
CREATION = (Step("curl -s", '"name":"dev"'),)
EXEC = (Step("curl -s", "^Linux dev"),)
PYTHON_KEY = (
    Step("export BOXD_URL="),
    Step("export BOXD_API_KEY=", "", {"echo $BOXD_API_KEY": "^svc_[A-Za-z0-9]{40}$"}),
)
PYTHON = (
    (Step("", "^Linux dev"),),
    (Step("", "stdout: building\n(.|\n)*exit code 2|stderr: done\n(.|\n)*exit code 2"),),
    (Step("", r"running\n.*'tool'.*\ntmp-[0-9a-f]{8}\n"),),
    (Step("", r"exit codes: \[0, 1, 0, 1, 0\]"),),
    (Step("", r"step 1\nstep 2\nstep 3\nexited"),),
    (Step("", r"all tests pass\nb'tests'\n15 bytes\nerror: "),),
)
"""One for each program of the page."""
MCP_CONFIG = (
    Step("box mcp-config claude-code", r'"url": "http://127.0.0.1:8080/v1/mcp"'),
    Step("box mcp-config claude-desktop", r'"command": "ssh"'),
)
TYPESCRIPT_KEY = PYTHON_KEY
TYPESCRIPT = (
    (Step("", "^Linux dev"),),
    (Step("", "stdout: building\n(.|\n)*exit code 2|stderr: done\n(.|\n)*exit code 2"),),
    (Step("", r"running\n(.|\n)*'tool'(.|\n)*\ntmp-[0-9a-f]{8}\n"),),
    (Step("", r"exit codes: \[ 0, 1, 0, 1, 0 \]"),),
    (Step("", r"step 1\n+step 2\n+step 3\n+exited"),),
    (Step("", r"all tests pass\n(.|\n)*116, 101, 115, 116, 115(.|\n)*15 bytes\nerror: "),),
)
"""One for each program of the page."""
BOX_COMMAND = (
    Step("ssh -p 2222 cli@127.0.0.1 apikeys create box |", "the key reaches"),
    Step("box new tool", "tool .*running.* debian"),
    Step("box run tool uname", "^Linux tool"),
    Step("box run tool 'cd /etc", "^[0-9]+$"),
    Step("box ls", "^tool .*running"),
)
BOX_COPIES = (
    Step("mkdir -p site"),
    Step("box cp site", "", {"box run tool cat /srv/site/index.html": "hello"}),
    Step("box cp tool:", "", {"cat copy.html": "^<h1>hello</h1>$"}),
)
BOX_COMPLETION = (
    Step('eval "$(box', "", {"complete -p box": "_box"}),
    Step("box rm tool", "tool removed"),
)
COMMANDS = (
    Step(f'{CLI} "commands start dev', "^[0-9a-f]{16}$"),
    Step("ID=$(", "", {"echo $ID": "^[0-9a-f]{16}$"}),
    Step(f"{CLI} commands output", "^step 1\nstep 2\nstep 3$"),
    Step(f"{CLI} commands ls dev", "exited 0"),
)
RESPOND_ASYNC = (
    Step("URL="),
    Step("COMMAND=$(", "", {"echo $COMMAND": "^/v1/boxes/[0-9a-f]{32}/commands/[0-9a-f]{16}$"}),
    Step("curl -sN", '^id: 11$(.|\n)*"code": 0'),
    Step("curl -s", '"next_offset": 11'),
)
COMMAND_INPUT = (
    Step("ID=$("),
    Step("echo hello"),
    Step(f"{CLI} commands output", "^hello$"),
    Step(f"{CLI} commands rm", "removed"),
)
WATCH = (
    Step(f'{CLI} "commands start dev', "^[0-9a-f]{16}$"),
    Step("curl -sN", '"path": "/root/watched", "kind": "created"'),
)
AGENT = (
    Step(f"{CLI} \"agent set --cmd 'my-agent", "MY_AGENT_TOKEN +jsonl"),
    Step(f"{CLI} agent show", r"\A(?!(.|\n)*my-token)(.|\n)*my-agent"),
)
REFERENCE_AGENT = (
    Step("scp -P 2222 docs/agents/reference-agent"),
    Step(f'{CLI} "agent set --cmd /wrk/reference-agent', "AGENT_TOKEN +jsonl"),
)
DOCUMENTS = (Step("curl -s", r"^\["),)
RUN = {
    "README.md": (FIVE_MINUTES,),
    "ssh.md": (SSH, SSH_CONFIG, SHARE),
    "boxes.md": (SUSPEND, KEEP, PIN),
    "containers.md": (),
    "drive.md": (DRIVE, TREE_SNAPSHOT, TRASH, TRASH_HTTP),
    "secrets.md": (SECRETS,),
    "snapshots.md": (SNAPSHOTS, FORK),
    "profiles.md": (PROFILES,),
    "confidential-boxes.md": (CONFIDENTIAL,),
    "http-api.md": (CREATION, EXEC),
    "background-commands.md": (COMMANDS, RESPOND_ASYNC, COMMAND_INPUT, WATCH),
    "python.md": (PYTHON_KEY, *PYTHON),
    "typescript.md": (TYPESCRIPT_KEY, *TYPESCRIPT),
    "box-command.md": (BOX_COMMAND, BOX_COPIES, BOX_COMPLETION),
    "account.md": (),
    "agents.md": (),
    "mcp.md": (MCP_CONFIG,),
    "tasks.md": (AGENT, REFERENCE_AGENT, DOCUMENTS),
    "previews.md": (),
}
"""What the reader types, page by page and block for block."""

BEGIN = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "reader", "version": "1"},
    },
}
TASK = {"prompt": "echo marker > /wrk/done", "agent": True, "box": "dev"}
DELEGATE = {
    "jsonrpc": "2.0",
    "id": 2,
    "method": "tools/call",
    "params": {"name": "delegate", "arguments": TASK},
}


class Reader:
    """One person with one shell, who reads from top to bottom."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell

    def follow(self, block: Block, steps: tuple[Step, ...]) -> None:
        """Types the commands of a block; each must do what its step says."""
        if block.language in INTERPRETERS:
            (step,) = steps
            self.type(f"{INTERPRETERS[block.language]} <<'END'\n{block.text}END", step.shows)
            return
        commands = block.commands()
        assert len(commands) == len(steps), f"commands and steps differ: {commands}"
        for command, step in zip(commands, steps, strict=True):
            assert command.startswith(step.command), f"no step says what this does: {command}"
            names = self.type(command, step.shows, step.replies)
            for effect, pattern in step.effects.items():
                for name, value in names.items():
                    effect = effect.replace(f"<{name}>", value)
                    pattern = pattern.replace(f"<{name}>", re.escape(value))
                self.type(effect, pattern)

    def type(self, command: str, pattern: str, replies: tuple[Reply, ...] = ()) -> dict[str, str]:
        """Runs a command that must succeed and show a pattern; the groups of that."""
        shown = self._shell.run(command, replies)
        match = re.search(pattern, shown.text, re.MULTILINE)
        assert (shown.status, bool(match)) == (0, True), f"$ {command}\n{shown.text}"
        assert match is not None
        return match.groupdict()

    def configure(self, block: Block) -> None:
        """Does what an MCP client does first with a configuration."""
        (server,) = json.loads(block.text)["mcpServers"].values()
        begin = shlex.quote(json.dumps(BEGIN))
        if "command" in server:
            start = shlex.join([server["command"], *server["args"]])
            self.type(f"echo {begin} | {start}", '"serverInfo"')
            return
        assert server["headers"] == {"Authorization": "Bearer svc_..."}
        headers = (
            '"Authorization: Bearer $KEY"',
            '"Content-Type: application/json"',
            '"Accept: application/json, text/event-stream"',
            '"Mcp-Session-Id: $SESSION"',
        )
        options = " ".join(f"-H {header}" for header in headers)
        self.type(f'post() {{ curl -sN {options} {server["url"]} -d "$@"; }}', "")
        self.type("unset SESSION", "")
        names = self.type(f"post {begin} -D -", r"(?i)^mcp-session-id: (?P<session>\w+)")
        self.type(f"SESSION={names['session']}", "")

    def delegate(self) -> None:
        """Gives the agent of the guide a task."""
        self.type(f"post {shlex.quote(json.dumps(DELEGATE))}", "1 steps done")
        self.type(f"{DEV} cat /wrk/done", "^marker$")


@pytest.fixture
def daemon(image_rootfs: Path) -> Iterator[Daemon]:
    """Serves on the ports of the guide, with the flags of `make up`."""
    with installation(image_rootfs) as made:
        made.addresses = ("127.0.0.1:2222", "127.0.0.1:8080")
        made.start()
        yield made


@pytest.fixture
def reader(daemon: Daemon) -> Iterator[Reader]:
    """Has made a key as README says, and stands in a clone of the repository.

    The home has a short name: OpenSSH cannot share connections below a long one.
    """
    with tempfile.TemporaryDirectory(prefix="reader-") as directory:
        home, clone = Path(directory) / "home", Path(directory) / "clone"
        home.mkdir()
        clone.mkdir()
        (clone / "docs").symlink_to(ROOT / "docs")
        (clone / "make-up.log").symlink_to(daemon.log)
        with open_shell(home, clone) as shell:
            (clone / "node_modules").symlink_to(built_client() / "node_modules")
            reader = Reader(shell)
            reader.type(f"PATH={Path(sys.executable).parent}:$PATH", "")
            reader.type("ssh-keygen -t ed25519", "", NEW_KEY)
            yield reader


def test_a_reader_follows_the_whole_guide(reader: Reader) -> None:
    for page in pages(ROOT):
        left = list(RUN[page.name])
        for block in _to_follow(page):
            if block.language == "json":
                reader.configure(block)
            else:
                assert left, f"{page.name}: no steps say what this block does: {block.text}"
                reader.follow(block, left.pop(0))
        assert left == [], f"{page.name} lacks blocks that the test knows"
    reader.delegate()


def test_every_page_and_block_is_run_or_marked() -> None:
    assert sorted(page.name for page in pages(ROOT)) == sorted(RUN)
    guide = (ROOT / "docs" / "guide").glob("*.md")
    assert sorted(page.name for page in guide) == sorted(set(RUN) - {"README.md"})
    not_run: dict[str, int] = {}
    for page in pages(ROOT):
        typed = [block for block in _to_follow(page) if block.language != "json"]
        assert {block.language for block in typed} <= {"sh", *INTERPRETERS}, page.name
        assert len(typed) == len(RUN[page.name]), page.name
        marked = [block for block in blocks(page) if block.not_run is not None]
        if marked:
            not_run[page.name] = len(marked)
    assert not_run == NOT_RUN


def _to_follow(page: Path) -> list[Block]:
    """The blocks of a page that a reader types, or gives to an MCP client."""
    return [
        block for block in blocks(page) if block.not_run is None and block.language not in NOT_TYPED
    ]
