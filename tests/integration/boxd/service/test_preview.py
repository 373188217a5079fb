"""Preview hosts of the whole service before real boxes: sleep, restarts of the daemon, cookies."""

from __future__ import annotations

import http.client
import signal
from typing import TYPE_CHECKING

import pytest

from tests.harness.http.web import PREVIEW_DOMAIN
from tests.harness.mounts.drive import until
from tests.harness.service.daemon import open_daemon
from tests.harness.service.user import User

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.harness.service.daemon import Daemon

pytestmark = pytest.mark.timeout(300)

PORT = 8000
SERVER = f"""
cat > /root/server.py <<'END'
import http.server, secrets, time
NONCE = secrets.token_hex(8).encode()
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        self.send_response(200)
        self.send_header("content-length", "17" if self.path == "/slow" else "16")
        self.end_headers()
        self.wfile.write(NONCE)
        time.sleep(600 if self.path == "/slow" else 0)
http.server.ThreadingHTTPServer(("127.0.0.1", {PORT}), Handler).serve_forever()
END
nohup setsid python3 /root/server.py >/root/log 2>&1 </dev/null &
"""
"""A server that says what only its memory knows; at /slow it goes on as if more came."""


class Browser:
    """Somebody at the preview host of the box `web`."""

    def __init__(self, daemon: Daemon, key: str) -> None:
        self._daemon = daemon
        self._key = key
        self._cookie = ""

    def get(self, path: str = "/") -> tuple[int, bytes]:
        """Status and body; the first visit is by the key, later ones by the cookie."""
        connection, answer = self.begin(path)
        try:
            return answer.status, answer.read()
        finally:
            connection.close()

    def begin(self, path: str = "/") -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        """A request whose answer may last."""
        connection = http.client.HTTPConnection("127.0.0.1", self._daemon.api_port, timeout=60)
        shown = {"Cookie": self._cookie} if self._cookie else {}
        query = "" if self._cookie else f"?key={self._key}"
        host = {"Host": f"web-{PORT}.{PREVIEW_DOMAIN}"}
        connection.request("GET", path + query, headers=host | shown)
        answer = connection.getresponse()
        self._cookie = self._cookie or (answer.headers["set-cookie"] or "").split(";")[0]
        return connection, answer

    def certificate(self) -> int:
        """What the TLS proxy is told of the host."""
        connection = http.client.HTTPConnection("127.0.0.1", self._daemon.api_port, timeout=60)
        connection.request("GET", f"/v1/tls-ask?domain=web-{PORT}.{PREVIEW_DOMAIN}")
        try:
            return connection.getresponse().status
        finally:
            connection.close()


@pytest.fixture
def user(image_rootfs: Path, tmp_path: Path) -> Iterator[User]:
    """A user of a service with previews, with a server in the box `web`."""
    with open_daemon(image_rootfs, flags=("--preview-domain", PREVIEW_DOMAIN)) as daemon:
        user = User(daemon, tmp_path)
        user.ssh("web", SERVER)
        yield user


@pytest.fixture
def browser(user: User) -> Browser:
    """A browser that has opened the page."""
    browser = Browser(user.daemon, user.ssh("cli", "apikeys create browser"))
    until(lambda: browser.get()[0] == 200)
    return browser


def test_a_visit_wakes_the_box_as_it_was(user: User, browser: Browser) -> None:
    before = browser.get()
    assert "suspended" in user.ssh("cli", "suspend web")
    assert browser.certificate() == 200
    assert user.boxes()["web"]["state"] == "suspended"
    assert browser.get() == before
    assert user.boxes()["web"]["state"] == "running"


def test_an_answer_that_lasts_holds_the_box_awake(user: User, browser: Browser) -> None:
    connection, answer = browser.begin("/slow")
    try:
        assert answer.status == 200
        assert user.boxes()["web"]["why"] == {"proxy": 1}
        assert "box web is in use" in user.ssh("cli", "suspend web", status=1)
    finally:
        answer.close()
        connection.close()
    until(lambda: user.boxes()["web"]["attached"] == 0)
    assert "suspended" in user.ssh("cli", "suspend web")


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_the_next_daemon_knows_hosts_and_cookies(
    user: User, browser: Browser, end: signal.Signals
) -> None:
    before = browser.get()
    user.daemon.end(end)
    user.daemon.start()
    assert browser.certificate() == 200
    assert browser.get() == before
    user.ssh("cli", "rm web")
    assert browser.certificate() == 403
    assert browser.get()[0] == 401
    user.ssh("web", "true")
    assert browser.get()[0] == 401
