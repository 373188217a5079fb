"""Programs of Go, whose servers listen by MPTCP where the kernel offers it, sleep and wake."""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.harness.boxes.suspending import Sleepy

pytestmark = pytest.mark.timeout(300)

PORT = 8090
SUSPENSIONS = 10
BUILD_TIMEOUT = 240
SERVER = f"""
package main

import (
	"fmt"
	"net/http"
)

func main() {{
	count := 0
	http.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {{
		count++
		fmt.Fprintln(w, count)
	}})
	panic(http.ListenAndServe(":{PORT}", nil))
}}
"""
CALLS = """
import ctypes, errno, json, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
def outcome(result):
    return "made" if result >= 0 else errno.errorcode[ctypes.get_errno()]
print(json.dumps({
    f"{family}/{protocol}": outcome(libc.socket(family, socket.SOCK_STREAM, protocol))
    for family in (socket.AF_INET, socket.AF_INET6)
    for protocol in (0, socket.IPPROTO_TCP, 256, 262)
} | {"landlock": outcome(libc.syscall(444, 0, 0, 1))}))
"""
"""System call 444 is landlock_create_ruleset; with these arguments it tells its version."""


async def test_mptcp_and_landlock_are_as_on_a_kernel_without_them(sleepy: Sleepy) -> None:
    """Go falls back to TCP after EPROTONOSUPPORT or EINVAL alone, without a try of its own."""
    box = await sleepy.host.box()
    result = await sleepy.host.python(box, CALLS)
    assert result.status == 0, result.err
    assert json.loads(result.out) == {
        "2/0": "made",
        "2/6": "made",
        "2/256": "EPROTONOSUPPORT",
        "2/262": "EPROTONOSUPPORT",
        "10/0": "made",
        "10/6": "made",
        "10/256": "EPROTONOSUPPORT",
        "10/262": "EPROTONOSUPPORT",
        "landlock": "ENOSYS",
    }


@pytest.mark.skipif(shutil.which("go") is None, reason="builds its server with the Go toolchain")
async def test_a_server_of_go_sleeps_and_wakes(sleepy: Sleepy, tmp_path: Path) -> None:
    """It counts its requests in memory: each one after a resumption is the next."""
    program = _build(tmp_path)
    guest = await sleepy.guest()
    host, box = sleepy.host, guest.box
    stored = await host.run(
        box, "sh", "-c", "cat > /root/server && chmod +x /root/server", stdin=program.read_bytes()
    )
    assert stored.status == 0, stored.err
    await host.run(box, "sh", "-c", "setsid /root/server </dev/null >/root/served 2>&1 &")

    async def answer() -> str:
        ask = f"import urllib.request as u; print(u.urlopen('http://127.0.0.1:{PORT}/').read())"
        return (await host.python(box, ask)).out

    listening = f"while ! ss -ltn | grep -q ':{PORT} '; do sleep 0.05; done"
    assert (await host.run(box, "timeout", "30", "sh", "-c", listening)).status == 0
    for count in range(1, SUSPENSIONS + 1):
        assert await answer() == f"b'{count}\\n'\n"
        asleep = await sleepy.suspend(guest)
        await sleepy.resume(guest)
        await guest.goes_on(asleep["tick"])


def _build(directory: Path) -> Path:
    """The server as one program without libraries."""
    (directory / "server.go").write_text(SERVER)
    subprocess.run(
        [shutil.which("go") or "go", "build", "-o", "server", "server.go"],
        cwd=directory,
        env={"HOME": str(directory), "PATH": "/usr/bin:/bin", "CGO_ENABLED": "0"},
        check=True,
        timeout=BUILD_TIMEOUT,
    )
    return directory / "server"
