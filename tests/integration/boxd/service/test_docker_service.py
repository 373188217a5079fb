"""The whole service with its boxes in a Docker engine."""

from __future__ import annotations

import base64
import http.client
import json
import signal
import subprocess
from typing import TYPE_CHECKING
from urllib.parse import quote

import psutil
import pytest

from boxd.backends.docker.backend import WHY_NO_SUSPEND
from tests.harness.mounts.drive import until
from tests.harness.service.daemon import BOXD, STOP_S
from tests.harness.service.user import SSH, User

if TYPE_CHECKING:
    from pathlib import Path

    from tests.harness.boxes.dockerd import Dockerd
    from tests.harness.service.daemon import Daemon

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def user(docker_daemon: Daemon, tmp_path: Path) -> User:
    """A user of the daemon."""
    return User(docker_daemon, tmp_path)


def post(user: User, key: str, path: str, text: str = "") -> tuple[int, dict[str, object]]:
    """One HTTP request with an API key and its answer's JSON."""
    connection = http.client.HTTPConnection("127.0.0.1", user.daemon.api_port, timeout=60)
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "text/plain"}
    try:
        connection.request("POST", path, text, headers)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def test_a_box_is_used_by_every_door_and_outlives_the_daemon(
    docker_daemon: Daemon, user: User, tmp_path: Path
) -> None:
    user.ssh("dev", "echo one >/wrk/file; echo two >/root/file; sleep 100000 >/dev/null 2>&1 &")
    key = user.ssh("cli", "apikeys create laptop")
    assert user.get(key, "/v1/wrk/file") == (200, b"one\n")
    status, done = post(user, key, "/v1/exec/dev?stream=false", "cat /wrk/file /root/file")
    assert (status, done["exit_code"]) == (200, 0)
    assert base64.b64decode(str(done["stdout"])) == b"one\ntwo\n"
    batch = tmp_path / "batch"
    batch.write_text(f"put {tmp_path}/key.pub /root/uploaded\n")
    port = str(docker_daemon.ssh_port)
    sftp = ["sftp", *SSH[1:], "-i", str(user.key), "-P", port, "-b", str(batch), "dev@127.0.0.1"]
    subprocess.run(sftp, check=True, capture_output=True, timeout=60)
    assert user.ssh("dev", "cat /root/uploaded") == (tmp_path / "key.pub").read_text().strip()
    before = user.boxes()["dev"]["id"]
    docker_daemon.end(signal.SIGKILL)
    docker_daemon.start()
    assert user.boxes()["dev"]["id"] == before
    assert "sleep 100000" in user.ssh("dev", "cat /proc/*/cmdline | tr '\\0' ' '")
    assert user.ssh("dev", "cat /wrk/file /root/file") == "one\ntwo"


def test_a_box_whose_agent_is_stopped_starts_from_its_disk(dockerd: Dockerd, user: User) -> None:
    """Nobody enters the box: the service finds its agent."""
    user.ssh("dev", "touch /root/kept")
    agent = _agent(dockerd, str(user.boxes()["dev"]["id"]))
    agent.suspend()
    wanted = "started from its disk: its agent (process 1) does not run: a signal stopped it"
    until(lambda: user.boxes()["dev"]["detail"] == wanted)
    assert user.ssh("dev", "ls /root/kept") == "/root/kept"


def _agent(dockerd: Dockerd, box_id: str) -> psutil.Process:
    """The first process of a box, as the engine tells it."""
    filters = quote(json.dumps({"label": [f"boxd.box={box_id}"]}))
    [found] = json.loads(_engine(dockerd, f"/containers/json?filters={filters}"))
    container = json.loads(_engine(dockerd, f"/containers/{found['Id']}/json"))
    return psutil.Process(container["State"]["Pid"])


def _engine(dockerd: Dockerd, path: str) -> bytes:
    command = ["curl", "-fsS", "--unix-socket", str(dockerd.socket), f"http://engine{path}"]
    return subprocess.run(command, check=True, capture_output=True).stdout


def test_doctor_tells_of_the_engine(docker_daemon: Daemon, dockerd: Dockerd) -> None:
    done = docker_daemon.run("doctor")
    assert done.returncode == 0, done.stdout
    (line,) = (one for one in done.stdout.splitlines() if one.startswith("docker engine"))
    assert line.split()[2] == "ok"
    assert f"overlay2, at {dockerd.socket}" in line


def test_suspending_is_refused_with_the_reason(user: User) -> None:
    key = user.ssh("cli", "apikeys create laptop")
    user.ssh("dev", "true")
    status, said = post(user, key, "/v1/boxes/dev/suspend")
    assert status == 400
    assert WHY_NO_SUSPEND in str(said)
    assert user.boxes()["dev"]["state"] == "running"


def test_down_stops_the_boxes_without_being_told_of_the_engine_and_disks_stay(
    docker_daemon: Daemon, dockerd: Dockerd, user: User
) -> None:
    user.ssh("ws1/dev", "echo one >/wrk/file; echo two >/root/file")
    docker_daemon.end(signal.SIGKILL)
    where = ["--state-dir", str(docker_daemon.state), "--docker-socket", str(dockerd.socket)]
    subprocess.run([*BOXD, "down", *where], check=True, capture_output=True, timeout=STOP_S)
    assert docker_daemon.left_overs() == []
    docker_daemon.start()
    assert user.boxes()["ws1/dev"]["state"] == "suspended"
    assert user.ssh("ws1/dev", "cat /wrk/file /root/file") == "one\ntwo"


def test_an_image_has_no_say_in_how_the_agent_runs(
    dockerd: Dockerd, busybox_root: Path, user: User
) -> None:
    """The agent is init, as root, undisturbed; only sessions get the image's environment."""
    dockerd.add_image(
        busybox_root,
        "test/hostile",
        "1.2",
        'ENTRYPOINT ["/bin/false"]',
        'CMD ["/bin/false"]',
        "USER 7:7",
        "WORKDIR /tmp",
        'HEALTHCHECK --interval=1s CMD ["/bin/false"]',
        'VOLUME ["/data", "/run", "/run/box", "/wrk"]',
        "ENV LD_PRELOAD=/lib/evil.so",
        "ENV PYTHONHOME=/nowhere PYTHONPATH=/nowhere PYTHONSTARTUP=/nowhere",
        "ENV PATH=/opt/tools:/bin",
        "ENV TOOL=hammer",
        "LABEL boxd.installation=000000 boxd.box=0",
    )
    look = "id -u; tr '\\0' ' ' </proc/1/cmdline; echo; tr '\\0' '\\n' </proc/1/environ; "
    look += "echo $TOOL $PATH; command -v box-guest; grep Uid: /proc/1/status; echo x >/wrk/file"
    said = user.ssh("hard:test/hostile:1.2", look).splitlines()
    assert said[0] == "0"
    assert said[1].rstrip().endswith("-m box_guest")
    environment = said[2 : said.index("hammer /opt/tools:/bin:/.box/bin")]
    assert {line.partition("=")[0] for line in environment} == {"PATH", "HOME", "LANG", "HOSTNAME"}
    assert said[-2:] == ["/.box/bin/box-guest", "Uid:\t0\t0\t0\t0"]
    assert list((dockerd.directory / "data/volumes").glob("*/"))
    user.ssh("cli", "rm hard")
    assert not list((dockerd.directory / "data/volumes").glob("*/"))


def test_an_image_that_cannot_be_had_leaves_nothing(docker_daemon: Daemon, user: User) -> None:
    boxes = docker_daemon.boxes()
    # Nobody listens there, and nobody waits for the address of a name.
    said = user.ssh("dev:127.0.0.1:9/none:1", "true", status=255)
    assert "image '127.0.0.1:9/none:1' is not on this host and cannot be pulled" in said
    assert "127.0.0.1:9" in said.partition("pulled:")[2]
    assert "dev" not in user.boxes()
    assert docker_daemon.boxes() == boxes


def test_a_state_directory_of_another_backend_is_refused(docker_daemon: Daemon, user: User) -> None:
    boot = user.ssh("dev", "cat /proc/1/stat")
    docker_daemon.end(signal.SIGTERM)
    addresses = ["--ssh-addr", "127.0.0.1:0", "--state-dir", str(docker_daemon.state)]
    done = subprocess.run(
        [*BOXD, "serve", "--backend", "runc", *addresses],
        check=False,
        capture_output=True,
        text=True,
        timeout=STOP_S,
    )
    assert done.returncode == 1
    assert "holds boxes of the backend docker; start with --backend docker" in done.stderr
    docker_daemon.start()
    again = user.ssh("dev", "cat /proc/1/stat")
    assert again.split()[21] == boot.split()[21]  # the same init


def test_an_engine_that_ends_takes_the_boxes_along_and_they_start_again(
    dockerd: Dockerd, user: User
) -> None:
    user.ssh("dev", "echo two >/root/file")
    dockerd.end()
    said = user.ssh("dev", "true", status=255)
    assert "the Docker engine" in said
    assert "cannot be reached" in said
    dockerd.start()
    assert user.ssh("dev", "cat /root/file") == "two"
