"""Ports of real boxes over HTTP: in the box's own network, and awake again when it sleeps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.harness.mounts.drive import until
from tests.integration.boxd.service.test_service import User

if TYPE_CHECKING:
    from pathlib import Path

    from tests.harness.service.daemon import Daemon

pytestmark = pytest.mark.timeout(300)

SERVER = """
import http.server, os
class Handler(http.server.BaseHTTPRequestHandler):
    visits = 0
    def do_GET(self):
        Handler.visits += 1
        said = f"{os.getpid()} {Handler.visits} {self.client_address[0]} {self.path}".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)
http.server.HTTPServer(("127.0.0.1", 3000), Handler).serve_forever()
"""
START = f"""
python=$(command -v python3 || echo /.box/python/bin/python3)
cat > /root/server.py <<'END'
{SERVER}
END
nohup setsid $python /root/server.py >/dev/null 2>&1 </dev/null &
until (exec 3<>/dev/tcp/127.0.0.1/3000) 2>/dev/null; do sleep 0.1; done
"""


@pytest.fixture
def user(daemon: Daemon, tmp_path: Path) -> User:
    """A user of the daemon."""
    return User(daemon, tmp_path)


def test_a_port_of_a_real_box_sleeps_and_wakes_with_it(user: User) -> None:
    key = user.ssh("cli", "apikeys create laptop").split()[-1]
    path = "/v1/boxes/web/proxy/3000/a%2fb?c=1"
    assert user.http("GET", key, path)[0] == 404
    user.ssh("web", "bash -s <<'SCRIPT'\n" + START + "\nSCRIPT")
    status, said = user.http("GET", key, path)
    assert status == 200, said
    pid, visits, client, asked = said.decode().split()
    assert (visits, client, asked) == ("1", "127.0.0.1", "/a%2fb?c=1")
    status, said = user.http("GET", key, "/v1/boxes/web/proxy/3001/")
    assert (status, b"connection refused" in said) == (502, True)
    until(lambda: user.boxes()["web"]["attached"] == 0, 30)
    assert user.http("POST", key, "/v1/boxes/web/suspend")[0] == 200
    status, said = user.http("GET", key, path)
    assert (status, said.decode().split()[:2]) == (200, [pid, "2"])
    assert user.boxes()["web"]["state"] == "running"
    user.ssh("cli", "rm web")
    assert user.http("GET", key, path)[0] == 404
