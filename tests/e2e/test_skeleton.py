"""What a new user does in the first hour, with stock clients, on real input."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tarfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from tests.e2e.service import Person, Service, sha256, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.timeout(1200)

SOURCE = "botocore==1.40.61"
"""A source distribution of some thousand files."""


def test_up_says_what_to_type_next(service: Service) -> None:
    # Both doors answer a moment before the text is there.
    wait_for(lambda: "Ctrl-C stops everything" in "".join(service.output), 30, "the welcome")
    text = "".join(service.output)
    assert f"ssh -p {service.ssh_port} dev@127.0.0.1" in text
    assert f"ssh -p {service.ssh_port} cli@127.0.0.1 apikeys create laptop" in text
    assert f"http://127.0.0.1:{service.api_port}/v1/wrk/" in text
    assert "SHA256:" in text


def test_doctor_prints_the_same_checks(service: Service) -> None:
    command = [".venv/bin/boxd", "doctor", "--state-dir", str(service.state_dir)]
    done = subprocess.run(
        command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "/dev/fuse" in done.stdout


def test_a_second_service_on_the_same_state_is_refused(service: Service) -> None:
    command = [".venv/bin/boxd", "serve", "--state-dir", str(service.state_dir)]
    done = subprocess.run(
        command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert f"served by process {service.daemon_pid()}" in done.stderr
    assert "remedy" in done.stderr


def test_connecting_makes_a_box(person: Person) -> None:
    out = person.run("dev", "uname -a; df /wrk; hostname; id -un; pwd")
    assert "Linux" in out
    assert "/wrk" in out
    assert out.splitlines()[-3:] == ["dev", "root", "/root"]


def test_a_shell_in_a_terminal(person: Person) -> None:
    done = subprocess.run(
        person.ssh_command("dev", "-tt"),
        input=b"stty size; echo marker-$((6*7)); exit 3\n",
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert b"marker-42" in done.stdout
    assert done.returncode == 3


def test_exit_status_and_streams(person: Person) -> None:
    done = person.ssh("dev", "cat; echo problem >&2; exit 7", stdin=b"through")
    assert (done.stdout, done.stderr, done.returncode) == (b"through", b"problem\n", 7)


def test_files_travel_both_ways(person: Person, tmp_path: Path) -> None:
    port = str(person.service.ssh_port)
    data = os.urandom(3_000_000)
    local, back = tmp_path / "data.bin", tmp_path / "back"
    local.write_bytes(data)
    back.mkdir()
    options = person.options
    person.tool(["scp", *options, "-P", port, str(local), "dev@127.0.0.1:/wrk/scp.bin"])
    person.tool(["scp", "-O", *options, "-P", port, str(local), "dev@127.0.0.1:/wrk/scp-o.bin"])
    person.tool(["scp", *options, "-P", port, "dev@127.0.0.1:/wrk/scp-o.bin", str(back / "1")])
    batch = f"put {local} /wrk/sftp.bin\nget /wrk/scp.bin {back / '2'}\n"
    person.tool(["sftp", "-b", "-", *options, "-P", port, "dev@127.0.0.1"], stdin=batch.encode())
    shell = " ".join(["ssh", *options, "-p", port])
    person.tool(["rsync", "-a", "-e", shell, str(local), "dev@127.0.0.1:/wrk/rsync.bin"])
    person.tool(["rsync", "-a", "-e", shell, "dev@127.0.0.1:/wrk/rsync.bin", str(back / "3")])
    assert {sha256(path.read_bytes()) for path in back.iterdir()} == {sha256(data)}
    assert len(list(back.iterdir())) == 3
    sums = person.run("dev", "cd /wrk && sha256sum scp.bin scp-o.bin sftp.bin rsync.bin")
    assert [line.split()[0] for line in sums.splitlines()] == [sha256(data)] * 4


def test_removed_files_are_restored_in_the_box(person: Person, service: Service) -> None:
    person.run("dev", "mkdir -p /wrk/t/sub; echo one >/wrk/t/sub/f; chown 1000 /wrk/t/sub/f")
    person.run("dev", "chmod 640 /wrk/t/sub/f; rm -r /wrk/t")
    listed = person.run("dev", "cd /wrk && box-guest trash ls t")
    assert [line.split()[-1] for line in listed.splitlines()][-1] == "/wrk/t/sub/f"
    done = person.run("dev", "box-guest trash restore /wrk/t")
    assert done == "/wrk/t restored; files: 1, directories: 2\n"
    assert person.run("dev", "cd /wrk/t/sub; cat f; stat -c '%u %a' f") == "one\n1000 640\n"
    user = "su nobody -s /bin/sh -c 'box-guest trash ls'"
    refused = person.ssh("dev", user)
    assert (refused.returncode, refused.stdout) == (1, b"")
    assert b"only root can list and restore removed files" in refused.stderr
    key = person.run("cli", "apikeys create trash").strip()
    person.run("dev", "rm /wrk/t/sub/f; echo two >/wrk/t/sub/f")
    target = "/v1/trash/restore?path=/t/sub/f"
    assert service.http("POST", target, key=key).status == 409
    assert service.http("POST", f"{target}&to=/t/old", key=key).status == 200
    assert person.run("dev", "cat /wrk/t/sub/f /wrk/t/old") == "two\none\n"


@contextmanager
def _web_server(person: Person) -> Iterator[None]:
    """Port 8000 of the box serves a page."""
    served = (
        "mkdir -p /tmp/www && cd /tmp/www && echo forwarded > page && exec python3 -m http.server"
    )
    with subprocess.Popen(
        person.ssh_command("dev", f"{served} --bind 127.0.0.1 8000"),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as server:
        try:
            yield
        finally:
            server.terminate()


def test_a_port_of_the_box_has_a_path_and_a_host(person: Person, service: Service) -> None:
    key = person.run("cli", "apikeys create previews").strip()
    host = {"Host": "dev-8000.preview.internal"}

    def pages() -> list[bytes]:
        path = service.http("GET", "/v1/boxes/dev/proxy/8000/page", key=key)
        return [path.body, service.http("GET", "/page", key=key, headers=host).body]

    with _web_server(person):
        wait_for(lambda: pages() == [b"forwarded\n"] * 2, 30, "both show the page")
        assert service.http("GET", "/page", headers=host).status == 401
        first = service.http("GET", f"/page?key={key}", headers=host)
        cookie = {"Cookie": first.headers["set-cookie"].split(";")[0]}
        assert service.http("GET", "/page", headers=host | cookie).body == b"forwarded\n"
    asked = "/v1/tls-ask?domain=dev-8000.preview.internal"
    assert service.http("GET", asked).status == 200
    assert service.http("GET", asked.replace("dev", "absent")).status == 403
    wait_for(
        lambda: service.http("GET", "/page", key=key, headers=host).status == 502,
        *(30, "nothing listens any more"),
    )


def test_local_forwarding_reaches_the_box(person: Person) -> None:
    with _web_server(person):
        wait_for(lambda: _fetch(person).endswith(b"forwarded\n"), 30, "the page is forwarded")
    closed = person.forward("dev", "127.0.0.1:9")
    assert closed.returncode != 0
    assert b"127.0.0.1:9" in closed.stderr


def _fetch(person: Person) -> bytes:
    return person.forward("dev", "127.0.0.1:8000", b"GET /page HTTP/1.0\r\n\r\n").stdout


def test_a_confidential_box_speaks_with_its_owner_alone(person: Person, tmp_path: Path) -> None:
    via = ["ssh", *person.hop(), "root@hidden:debian"]
    show = "id -un; hostname; df /wrk | tail -1; stat -c %a /var/lib/box-guest/relay_key; exit 3"
    done = subprocess.run([*via, show], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (3, "")
    user, name, drive, mode = done.stdout.splitlines()
    assert (user, name, mode) == ("root", "hidden", "600")
    assert drive.endswith("/wrk")
    data = os.urandom(9_000_001)
    (tmp_path / "up").write_bytes(data)
    for old in ("-O", "-s"):
        person.tool(["scp", "-q", old, *person.hop(), str(tmp_path / "up"), "root@hidden:x"])
        person.tool(["scp", "-q", old, *person.hop(), "root@hidden:x", str(tmp_path / "down")])
        assert (tmp_path / "down").read_bytes() == data
    refused = person.ssh("hidden", "id")
    assert refused.returncode == 255
    pointer = f"ssh -J jump@127.0.0.1:{person.service.ssh_port} root@hidden"
    assert pointer in refused.stderr.decode()
    asked = person.ssh("cli", "snapshot create hidden")
    assert (asked.returncode, b"is confidential" in asked.stderr) == (1, True), asked.stderr


def test_the_drive_over_http(person: Person, stranger: Person, service: Service) -> None:
    key = person.new_key("laptop")
    person.run("dev", "printf 'from the box' > /wrk/hello.txt")
    assert service.http("GET", "/v1/wrk/hello.txt", key=key).body == b"from the box"
    put = service.http("PUT", "/v1/wrk/hello.txt", key=key, body=b"from outside")
    assert put.status == 204
    assert person.run("dev", "cat /wrk/hello.txt") == "from outside"
    assert service.http("PUT", "/v1/wrk/new/deep.txt", key=key, body=b"x").status == 201
    assert person.run("second", "cat /wrk/hello.txt /wrk/new/deep.txt") == "from outsidex"
    assert stranger.run("dev", "ls -A /wrk") == ""
    assert stranger.ssh("dev", "cat /wrk/hello.txt").returncode != 0
    foreign = stranger.new_key("theirs")
    assert service.http("GET", "/v1/wrk/hello.txt", key=foreign).status == 404
    assert service.http("DELETE", "/v1/wrk/hello.txt", key=key).status == 204
    assert person.ssh("dev", "cat /wrk/hello.txt").returncode != 0
    part = service.http("GET", "/v1/wrk/new/deep.txt", key=key, headers={"Range": "bytes=5-"})
    assert part.status == 416
    person.run("cli", "apikeys rm laptop")
    assert service.http("GET", "/v1/boxes", key=key).error == "invalid API key"


def test_the_command_line(person: Person, service: Service) -> None:
    assert "apikeys" in person.run("cli", "help")
    assert "debian" in person.run("images", "")
    boxes = person.run("cli", "ls")
    assert "dev" in boxes
    assert "running" in boxes
    listed = json.loads(person.run("cli", "ls --json"))
    assert {box["name"] for box in listed} >= {"dev", "second"}
    key = person.new_key("lister")
    over_http = json.loads(service.http("GET", "/v1/boxes", key=key).body)
    assert {box["id"] for box in over_http} == {box["id"] for box in listed}
    person.run("cli", "rm second")
    assert "second" not in person.run("cli", "ls")


def test_the_operator_looks_after_a_drive(person: Person, service: Service, tmp_path: Path) -> None:
    """docs/operate/drives.md: from the volumes to a restored file."""
    person.run("dev", "echo precious > /wrk/precious && sync && rm /wrk/precious")
    state = ["--state-dir", str(service.state_dir)]
    table = service.command("boxd", "volumes", "ls", *state).splitlines()
    assert table[0].split() == ["VOLUME", "OWNER", "WORKSPACE", "CREATED", "TRASHED", "UNTIL"]
    restored = []
    for number, line in enumerate(table[1:]):
        file = tmp_path / f"credentials{number}"
        service.command("boxd", "volumes", "credentials", line.split()[0], str(file), *state)
        assert file.stat().st_mode & 0o777 == 0o600
        at = ["--credentials", str(file)]
        assert "clean" in service.command("wrkfs", "fsck", *at)
        if "precious" in service.command("wrkfs", "trash", *at, "ls"):
            service.command("wrkfs", "trash", *at, "restore", "/precious")
            restored.append(number)
    assert len(restored) == 1
    assert person.run("dev", "cat /wrk/precious") == "precious\n"


def test_exec_over_http(person: Person, service: Service) -> None:
    key = person.new_key("runner")
    text = {"Content-Type": "text/plain"}
    buffered = service.http(
        "POST", "/v1/exec/dev?stream=false", key=key, body=b"echo out; exit 4", headers=text
    )
    answer = json.loads(buffered.body)
    assert (buffered.status, answer["exit_code"], answer["stdout"]) == (200, 4, "b3V0Cg==")
    stream = service.http("POST", "/v1/exec/dev", key=key, body=b"echo out", headers=text)
    assert stream.body.count(b"event: exit") == 1
    assert stream.body.rstrip().endswith(b'data: {"code": 0}')


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/wrk/../etc/passwd", 400),
        ("GET", "/v1/wrk/%2e%2e/x", 400),
        ("GET", "/v1/wrk/a%00b", 400),
        ("GET", "/v1/wrk/" + "n" * 256, 400),
        ("GET", "/v1/wrk/absent", 404),
        ("DELETE", "/v1/wrk/", 400),
        ("GET", "/v1/wrk/x?ws=..", 400),
        ("POST", "/v1/exec/Not%20A%20Name", 400),
        ("POST", "/v1/exec/cli", 400),
        ("POST", "/v1/exec/box:no-such-image", 400),
        ("DELETE", "/v1/boxes/nobody", 404),
        ("GET", "/v1/nothing", 404),
        ("PATCH", "/v1/boxes", 405),
    ],
)
def test_bad_requests(
    person: Person, service: Service, method: str, path: str, status: int
) -> None:
    key = person.new_key(f"bad-{sha256((method + path).encode())[:8]}")
    body = b"true" if method == "POST" else None
    headers = {"Content-Type": "text/plain"} if method == "POST" else {}
    answer = service.http(method, path, key=key, body=body, headers=headers)
    assert answer.status == status, answer.body
    assert answer.error
    unknown = service.http(method, path, key="svc_" + "0" * 40, body=body, headers=headers)
    assert unknown.status in {401, 404, 405}


def test_bad_specs_leave_no_box(person: Person) -> None:
    before = person.run("cli", "ls --json")
    for user in ["Up_per", "a" * 60, "box:no-such-image", "box^0s", "ws/", "session-ffff"]:
        done = person.ssh(user, "true")
        assert done.returncode == 255, (user, done)
        assert done.stderr
    after = person.run("cli", "ls --json")
    assert _names(after) == _names(before)


def _names(listing: str) -> set[str]:
    return {box["name"] for box in json.loads(listing)}


def test_a_source_tree_lives_on_the_drive(person: Person, service: Service, tmp_path: Path) -> None:
    """Unpacked and compiled in one box, read in full over HTTP and from a second box."""
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps"]
    command += ["--no-binary", "botocore"]
    command += ["--dest", str(tmp_path), SOURCE]
    subprocess.run(command, check=True, timeout=600)
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        files = ((member.name, tar.extractfile(member)) for member in tar)
        wanted = {name: sha256(file.read()) for name, file in files if file is not None}
    assert len(wanted) > 2000
    person.run(
        "dev", "mkdir /wrk/src && tar xz -C /wrk/src", stdin=archive.read_bytes(), timeout=600
    )
    person.run("dev", "python3 -m compileall -q /wrk/src >/dev/null", timeout=600)
    key = person.new_key("reader")
    listing = "cd /wrk/src && find . -type f -print0 | sort -z | xargs -0 sha256sum"
    here = _sums(person.run("dev", listing, timeout=600))
    there = _sums(person.run("third", listing, timeout=600))
    assert here == there
    assert wanted.items() <= here.items()
    assert any(name.endswith(".pyc") for name in here)
    for name, digest in here.items():
        answer = service.http("GET", f"/v1/wrk/src/{name}", key=key)
        assert (answer.status, sha256(answer.body)) == (200, digest), name


def _sums(text: str) -> dict[str, str]:
    pairs = (line.split(maxsplit=1) for line in text.splitlines())
    return {name.removeprefix("./"): digest for digest, name in pairs}


def _kill_mount(service: Service) -> None:
    pids = service.processes("box_guest.mount", str(service.state_dir))
    assert pids
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def _kill_postgres(service: Service) -> None:
    (pid,) = [
        int(path.read_text().split()[0])
        for path in service.state_dir.glob("postgres/**/postmaster.pid")
    ]
    os.kill(pid, signal.SIGKILL)


def _kill_objects(service: Service) -> None:
    pids = service.processes("objectserver", str(service.state_dir))
    assert pids
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def _kill_daemon(service: Service) -> None:
    service.kill_daemon()
    service.start()


WRITER = """
import hashlib, sys
folder = sys.argv[1]
n = 0
while n < 4000:
    size = 500_000 if n % 10 == 9 else 3_000
    block = hashlib.sha256(f"{folder} {n}".encode()).digest()
    data = (block * (size // 32 + 1))[:size]
    with open(f"{folder}/{n}", "wb") as file:
        file.write(data)
    print(n, hashlib.sha256(data).hexdigest(), flush=True)
    n += 1
"""


@pytest.mark.promise("D1")
@pytest.mark.parametrize("victim", [_kill_mount, _kill_postgres, _kill_objects, _kill_daemon])
def test_closed_files_survive_a_kill(
    person: Person, service: Service, victim: Callable[[Service], None], tmp_path: Path
) -> None:
    """Whatever is killed under writing, every file whose close was acknowledged is intact."""
    folder = f"/wrk/kill{victim.__name__}"
    person.run("dev", f"mkdir -p {folder} && cat > /root/writer.py", stdin=WRITER.encode())
    acknowledged = tmp_path / "acknowledged"
    with acknowledged.open("wb") as out:
        writer = subprocess.Popen(
            person.ssh_command("dev", f"python3 /root/writer.py {folder}"),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.DEVNULL,
        )
        try:
            wait_for(lambda: acknowledged.read_bytes().count(b"\n") >= 40, 120, "40 files")
            victim(service)
            wait_for(lambda: _writable(person, folder), 90, "the drive is back")
            done_then = acknowledged.read_bytes().count(b"\n")
            assert done_then >= 40
        finally:
            writer.kill()
            writer.wait()
    service.wait_up()
    key = person.new_key(f"check{victim.__name__.replace('_', '-')}")
    for line in acknowledged.read_text().splitlines():
        if len(line.split()) == 2 and len(line.split()[1]) == 64:
            number, digest = line.split()
            answer = service.http("GET", f"/v1/wrk{folder.removeprefix('/wrk')}/{number}", key=key)
            assert (answer.status, sha256(answer.body)) == (200, digest), number


def _writable(person: Person, folder: str) -> bool:
    done = person.ssh("dev", f"echo back > {folder}/back && cat {folder}/back", timeout=90)
    return done.stdout == b"back\n"


def test_interrupt_stops_everything_and_the_next_start_has_it_all(
    person: Person, service: Service
) -> None:
    key = person.new_key("keeper")
    person.run("dev", "echo kept > /root/disk; echo kept > /wrk/kept; sync")
    hidden = ["ssh", *person.hop(), "root@hidden", "cat /root/x /proc/sys/kernel/hostname"]
    before = subprocess.run(hidden, capture_output=True, timeout=60, check=True).stdout
    names = _names(person.run("cli", "ls --json"))
    assert service.interrupt() in {0, 2, -signal.SIGINT}, "".join(service.output)
    assert service.output[-1].strip() == "Stopped.", service.output[-5:]
    assert service.processes(str(service.state_dir)) == []
    assert str(service.state_dir) not in Path("/proc/self/mounts").read_text()
    service.start()
    assert _names(person.run("cli", "ls --json")) == names
    assert person.run("dev", "cat /root/disk /wrk/kept") == "kept\nkept\n"
    assert service.http("GET", "/v1/wrk/kept", key=key).body == b"kept\n"
    # It started from its disk, and its own server is the one that was known.
    again = subprocess.run(hidden, capture_output=True, timeout=60, check=True)
    assert (again.stdout, again.stderr) == (before, b"")


def test_no_secret_shows(person: Person, service: Service) -> None:
    """Keys, passwords and object secrets are in no log, command line or environment."""
    key = person.new_key("canary")
    assert service.http("GET", "/v1/boxes", key=key).status == 200
    assert service.http("GET", f"/v1/wrk/?key={key}", key="svc_" + "1" * 40).status == 401
    secrets = {key, *_stored_secrets(service.state_dir)}
    assert len(secrets) > 1
    places = {"output": "".join(service.output)}
    for folder in ("mounts", "boxes", "postgres", "objects"):
        logs = [
            *(service.state_dir / folder).rglob("*.log"),
            *(service.state_dir / folder).rglob("log"),
        ]
        places |= {str(path): path.read_text(errors="replace") for path in logs if path.is_file()}
    assert any("/mounts/" in place for place in places)
    assert any("/postgres/" in place for place in places)
    for process in psutil.process_iter():
        try:
            places[f"process {process.pid}"] = " ".join(
                [*process.cmdline(), *process.environ().values()]
            )
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    shown = [place for place, text in places.items() for word in secrets if word in text]
    assert not shown


def _stored_secrets(state_dir: Path) -> set[str]:
    """Words of at least 20 characters in the small 0600 files of the state directory."""
    words: set[str] = set()
    for folder in ("keys", "postgres", "objects"):
        for path in (state_dir / folder).glob("*"):
            if path.is_file() and path.stat().st_mode & 0o777 == 0o600:
                text = path.read_text(errors="replace").translate(
                    str.maketrans('"{},:=/@', " " * 8)
                )
                words |= {word for word in text.split() if len(word) >= 24 and word.isascii()}
    return words
