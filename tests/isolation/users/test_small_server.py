"""A box works as a small server: packages, users, set-uid programs, PostgreSQL and nginx.

The box has its own user namespace. `test_programs` runs a job of cron.
"""

from __future__ import annotations

import io
import os
import struct
import tarfile
import zipfile
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from tests.harness.boxes.backend import BoxHost, open_box_host

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

pytestmark = pytest.mark.timeout(300)

CONTROL = """Package: greeter
Version: 1.0
Architecture: all
Maintainer: Nobody <nobody@example.org>
Description: greets
"""
POSTINST = """#!/bin/sh
set -e
adduser --system --group --no-create-home --home /var/lib/greeter greeter
chown -R greeter:greeter /var/lib/greeter
chmod 2750 /var/lib/greeter
"""
POSTRM = '#!/bin/sh\nset -e\n[ "$1" = purge ] && rm -rf /var/lib/greeter || true\n'
REPOSITORY = """
set -e
cd /srv/greeter
chmod 755 DEBIAN/post*
dpkg-deb --build . /srv/greeter.deb
mkdir /srv/repository && mv /srv/greeter.deb /srv/repository/
cd /srv/repository
{ cat /srv/greeter/DEBIAN/control
  echo "Filename: ./greeter.deb"
  echo "Size: $(stat -c %s greeter.deb)"
  echo "SHA256: $(sha256sum greeter.deb | cut -d' ' -f1)"; } > Packages
rm /etc/apt/sources.list.d/*
echo "deb [trusted=yes] file:/srv/repository ./" > /etc/apt/sources.list.d/local.list
"""
WHEEL = {
    "greeter.py": "def greet():\n    return 'hello'\n",
    "greeter-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: greeter\nVersion: 1.0\n",
    "greeter-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    "greeter-1.0.dist-info/RECORD": "greeter.py,,\ngreeter-1.0.dist-info/METADATA,,\n"
    "greeter-1.0.dist-info/WHEEL,,\ngreeter-1.0.dist-info/RECORD,,\n",
}
NPM = {
    "greeter/package.json": '{"name": "greeter", "version": "1.0.0", "main": "index.js",'
    ' "bin": {"greet": "greet.js"}, "scripts": {"install": "id -un > installed-by"}}',
    "greeter/index.js": "module.exports = () => 'hello';\n",
    "greeter/greet.js": "#!/usr/bin/env node\nconsole.log(require('./index.js')());\n",
    "app/package.json": '{"name": "app", "version": "1.0.0"}',
}


DAC_OVERRIDE = struct.pack("<5I", 0x02000001, 1 << 1, 0, 0, 0)
"""Value of `security.capability`: version 2, effective, CAP_DAC_OVERRIDE."""


class Server:
    """A box in which root runs shell commands."""

    def __init__(self, host: BoxHost, box: str) -> None:
        self._host = host
        self._box = box

    async def run(self, command: str, stdin: bytes = b"") -> str:
        """Run a command that must succeed; return its output."""
        environment = ("env", "HOME=/root", "DEBIAN_FRONTEND=noninteractive")
        words = (*environment, "bash", "-c", f"cd /root; {command}")
        result = await self._host.run(self._box, *words, stdin=stdin)
        assert result.status == 0, f"{command}: {result.out}{result.err}"
        return result.out.strip()

    def on_disk(self, path: str) -> Path:
        """Return the place of a file that the box has changed, below the state directory."""
        (place,) = self._host.config.state_dir.glob(f"**/layer/upper/{path}")
        return place

    async def as_dev(self, command: str, stdin: bytes = b"") -> str:
        """Run a command that must succeed as the user `dev`."""
        return await self.run(f"su - dev -c '{command}'", stdin)


@pytest_asyncio.fixture
async def server(tmp_path: Path, programs_rootfs: Path) -> AsyncIterator[Server]:
    """Yield a box with a user `dev`."""
    async with open_box_host(tmp_path / "state", programs_rootfs) as host:
        server = Server(host, await host.box(pids=512, mem_mb=1024))
        await server.run("useradd --create-home --shell /bin/bash dev")
        yield server


def archive(files: dict[str, str]) -> bytes:
    """Return files as a tar."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as tar:
        for name, text in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(text), 0o644
            tar.addfile(entry, io.BytesIO(text.encode()))
    return data.getvalue()


async def test_apt_installs_a_package_whose_scripts_create_a_user(server: Server) -> None:
    files = {"DEBIAN/control": CONTROL, "DEBIAN/postinst": POSTINST, "DEBIAN/postrm": POSTRM}
    files |= {"var/lib/greeter/greeting": "hello\n", "usr/share/greeter/text": "hello\n"}
    await server.run("mkdir /srv/greeter && tar -x -C /srv/greeter", archive(files))
    await server.run(REPOSITORY)
    await server.run("apt-get update && apt-get install -y greeter")
    assert await server.run("stat -c '%U:%G %a' /var/lib/greeter") == "greeter:greeter 2750"
    assert await server.run("stat -c '%U %u' /usr/share/greeter/text") == "root 0"
    number = await server.run("id -u greeter")
    assert await server.run("stat -c %u /var/lib/greeter/greeting") == number
    await server.run("apt-get purge -y greeter && ! test -e /var/lib/greeter")
    await server.run("dpkg --audit && apt-get install -y /srv/repository/greeter.deb")


async def test_pip_installs_a_wheel_in_a_venv(server: Server) -> None:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as wheel:
        for name, text in WHEEL.items():
            wheel.writestr(name, text)
    await server.run("cat > /tmp/greeter-1.0-py3-none-any.whl", data.getvalue())
    install = "venv/bin/pip install --no-index /tmp/greeter-1.0-py3-none-any.whl"
    await server.as_dev(f"python3 -m venv venv && {install}")
    greeting = '"import greeter; print(greeter.greet())"'
    assert await server.as_dev(f"venv/bin/python -c {greeting}") == "hello"
    assert await server.as_dev("stat -c %U venv/lib/python3.11/site-packages/greeter.py") == "dev"


async def test_npm_installs_a_package_and_runs_its_script(server: Server) -> None:
    await server.as_dev("tar -x", archive(NPM))
    pack = "npm pack --silent ../greeter"
    await server.as_dev(f"cd app && {pack} && npm install --offline --no-audit ./greeter-1.0.0.tgz")
    assert await server.as_dev("app/node_modules/.bin/greet") == "hello"
    assert await server.as_dev("cat app/node_modules/greeter/installed-by") == "dev"
    await server.run("npm install --offline --global /home/dev/app/greeter-1.0.0.tgz")
    assert await server.as_dev("greet") == "hello"


async def test_su_sudo_and_passwd_gain_the_rights_of_the_box_s_root(server: Server) -> None:
    assert await server.as_dev("id -un; pwd") == "dev\n/home/dev"
    await server.run("echo 'dev:old-password' | chpasswd; echo 'root:secret-word' | chpasswd")
    await server.run("echo 'dev ALL=(ALL) NOPASSWD: ALL' > /etc/sudoers.d/dev")
    assert await server.as_dev("sudo id -u") == "0"
    assert await server.as_dev("sudo -u postgres id -un") == "postgres"
    assert "0" in await server.as_dev('su root -c "id -u"', b"secret-word\n")
    before = await server.run("getent shadow dev")
    await server.as_dev("passwd", b"old-password\nanother-Pass-4\nanother-Pass-4\n")
    assert await server.run("getent shadow dev") != before


async def test_ping_works_for_all_users_without_rights(server: Server) -> None:
    for run in (server.run, server.as_dev):
        assert "1 received" in await run("ping -c 1 -W 5 127.0.0.1")


async def test_a_cluster_of_postgresql_is_created_and_serves(server: Server) -> None:
    await server.run("pg_createcluster 15 second --start")
    port = await server.run("pg_lsclusters -h | awk '$2 == \"second\" { print $3 }'")
    create = f"createuser -p {port} dev && createdb -p {port} -O dev shop"
    await server.run(f"su - postgres -c '{create}'")
    query = "create table goods (n int); insert into goods values (42); select n from goods"
    assert (await server.as_dev(f'psql -qtA -p {port} shop -c "{query}"')).strip() == "42"
    assert await server.run("stat -c '%U %a' /var/lib/postgresql/15/second") == "postgres 700"
    await server.run("pg_ctlcluster 15 second restart && pg_ctlcluster 15 second stop")


async def test_nginx_serves_on_port_80_as_www_data(server: Server) -> None:
    await server.run("echo hello > /var/www/html/index.html; nginx")
    assert await server.run("curl -fsS http://127.0.0.1/") == "hello"
    workers = await server.run("ps -C nginx -o user= | sort | uniq")
    assert workers.split() == ["root", "www-data"]
    await server.run("nginx -s reload && curl -fsS http://127.0.0.1/ && nginx -s quit")


async def test_no_file_gets_a_capability_so_packages_use_set_uid_instead(server: Server) -> None:
    """A file with a capability that boxes lack could not run, as ping with cap_net_raw."""
    capability = "setcap cap_net_raw=ep /usr/local/bin/reader"
    await server.run("cp /usr/bin/cat /usr/local/bin/reader")
    assert "Operation not permitted" in await server.run(f"{capability} 2>&1 || true")
    await server.run(f"{capability} 2>/dev/null || chmod u+s /usr/local/bin/reader")
    assert "root:" in await server.as_dev("/usr/local/bin/reader /etc/shadow")


async def test_a_file_capability_of_the_disk_gives_a_user_one_right(server: Server) -> None:
    """As in an image that was imported with its capabilities."""
    await server.run("cp /usr/bin/cat /usr/local/bin/reader")
    assert "denied" in await server.as_dev("/usr/local/bin/reader /etc/shadow 2>&1 || true")
    os.setxattr(server.on_disk("usr/local/bin/reader"), "security.capability", DAC_OVERRIDE)
    assert "root:" in await server.as_dev("/usr/local/bin/reader /etc/shadow")
