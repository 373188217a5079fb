"""nginx, sshd and cron."""

from __future__ import annotations

import http.client
import socket
import subprocess
import threading
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tests.integration.boxd.suspension.programs.load import (
    ANSWER_TIMEOUT,
    Load,
    output,
    program,
    until,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import IO

WEB_PORT, SSH_PORT = 8091, 2222
SITE = f"""
server {{
    listen 127.0.0.1:{WEB_PORT};
    keepalive_requests 1000000;
    keepalive_timeout 1h;
    location /identity {{ return 200 "$pid $connection"; }}
    location / {{ root /var/www/html; }}
}}
"""
JOB = """#!/bin/sh
n=0
while [ $n -lt 3000 ]; do n=$((n + 1)); echo "$$ $n" >> /home/dev/jobs; sleep 0.02; done
"""
PAGE = "a page\n" * 1000
CRON_TIMEOUT = 120.0
COUNT = "n=0; while read word; do n=$((n + 1)); echo $$ $n $word $(id -un); done"


class Visits(threading.Thread):
    """Opens a connection to nginx for each request."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.count = 0
        self.error: Exception | None = None

    def run(self) -> None:
        """Request a page again and again."""
        try:
            while True:
                with socket.create_connection(("127.0.0.1", WEB_PORT), ANSWER_TIMEOUT) as visit:
                    visit.sendall(b"GET /page HTTP/1.0\r\n\r\n")
                    answer = b"".join(iter(partial(visit.recv, 65536), b""))
                if not answer.endswith(PAGE.encode()):
                    raise RuntimeError(f"nginx answered a visit with {answer[-100:]!r}")
                self.count += 1
        except Exception as error:
            self.error = error


class Web:
    """A connection to nginx that stays open."""

    def __init__(self) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", WEB_PORT, timeout=ANSWER_TIMEOUT)
        self._connection.connect()
        self._connection.auto_open = 0

    def get(self, path: str) -> str:
        """Return the body of a page."""
        self._connection.request("GET", path)
        return self._connection.getresponse().read().decode()


@program("nginx")
def nginx(load: Load) -> Iterator[None]:
    """Debian's configuration, two workers of www-data, connections that stay open."""
    load.version = output("nginx", "-v")
    Path("/etc/nginx/conf.d/site.conf").write_text(SITE)
    main = Path("/etc/nginx/nginx.conf")
    main.write_text(main.read_text().replace("worker_processes auto", "worker_processes 2"))
    Path("/var/www/html/page").write_text(PAGE)
    load.start("nginx", "nginx", "-g", "daemon off;")
    load.wait(Web)
    clients = [Web() for _ in range(3)]

    visits = Visits()
    visits.start()
    identity, visited = clients[0].get("/identity"), 0
    while True:
        for client in clients:
            if client.get("/page") != PAGE:
                raise RuntimeError("nginx served something else")
        before, visited = visited, visits.count
        if visits.error is not None or visited < before:
            raise RuntimeError(f"a visit failed: {visits.error!r}")
        if clients[0].get("/identity") != identity:
            raise RuntimeError("another worker has the connection")
        yield


@program("sshd")
def sshd(load: Load) -> Iterator[None]:
    """A session of a user and one of root, and a connection that has not logged in yet."""
    load.version = output("ssh", "-V")
    output("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", "/root/key")
    output("useradd", "--create-home", "--shell", "/bin/sh", "dev")
    for user, home in (("root", "/root"), ("dev", "/home/dev")):
        Path(home, ".ssh").mkdir(mode=0o700, exist_ok=True)
        Path(home, ".ssh/authorized_keys").write_text(Path("/root/key.pub").read_text())
        output("chown", "-R", f"{user}:", f"{home}/.ssh")
    Path("/run/sshd").mkdir(exist_ok=True)
    options = ("-p", str(SSH_PORT), "-o", "LoginGraceTime=0")
    load.start("sshd", "/usr/sbin/sshd", "-D", "-e", *options)
    load.wait(lambda: socket.create_connection(("127.0.0.1", SSH_PORT)).close())
    sessions = {user: session(user) for user in ("root", "dev")}
    early = socket.create_connection(("127.0.0.1", SSH_PORT), ANSWER_TIMEOUT)
    if not early.recv(4).startswith(b"SSH-"):
        raise RuntimeError("sshd greets with something else")
    pids: dict[str, str] = {}
    number = 0
    while True:
        number += 1
        for user, (writer, reader) in sessions.items():
            writer.write(f"word-{number}\n")
            writer.flush()
            pid, *words = reader.readline().split()
            if words != [str(number), f"word-{number}", user] or pids.setdefault(user, pid) != pid:
                raise RuntimeError(f"the session of {user} answered {pid} {words}")
        yield


def session(user: str) -> tuple[IO[str], IO[str]]:
    """Open a session that counts its lines; return its streams."""
    command = ("ssh", "-p", str(SSH_PORT), "-i", "/root/key", "-o", "StrictHostKeyChecking=no")
    client = subprocess.Popen(
        [*command, f"{user}@127.0.0.1", COUNT],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    if client.stdin is None or client.stdout is None:
        raise RuntimeError("ssh has no streams")
    return client.stdin, client.stdout


@program("cron")
def cron(load: Load) -> Iterator[None]:
    """A job of a user that starts each minute and counts for a minute."""
    load.version = output("dpkg-query", "-W", "cron")
    output("useradd", "--create-home", "dev")
    job = Path("/home/dev/job")
    job.write_text(JOB)
    job.chmod(0o755)
    crontab = ["crontab", "-u", "dev", "-"]
    subprocess.run(crontab, input=f"* * * * * {job}\n", text=True, check=True)
    load.start("cron", "cron", "-f")
    log, place = Path("/home/dev/jobs"), 0
    jobs: dict[str, int] = {}
    until(log.exists, CRON_TIMEOUT)
    with log.open() as lines:
        while True:
            lines.seek(place)
            line = lines.readline()
            if not line.endswith("\n"):
                yield
                continue
            place = lines.tell()
            pid, number = line.split()
            if int(number) != jobs.get(pid, 0) + 1:
                raise RuntimeError(f"job {pid} counts {number} after {jobs.get(pid)}")
            jobs[pid] = int(number)
