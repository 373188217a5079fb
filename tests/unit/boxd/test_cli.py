"""The command line: what it accepts, what it refuses and how it says so."""

from __future__ import annotations

import contextlib
import io
import logging
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from boxd import cli, log
from boxd.config import Address, Config
from boxd.errors import BadRequest
from tests.harness.tarballs import Tarball

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(autouse=True)
def _logging() -> Iterator[None]:
    """The command line sets logging up; afterwards it is as before."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    for name in ("boxd", "wrkfs"):
        logging.getLogger(name).setLevel(logging.NOTSET)


def parsed(*flags: str) -> Config:
    """The configuration that `serve` gets for some flags."""
    return cli._config(cli._parser().parse_args(["serve", *flags]))


def test_defaults() -> None:
    config = parsed()
    assert config == Config()
    assert config.api_addr is None


@pytest.mark.parametrize(
    ("size", "bytes_"),
    [("0", 0), ("4096", 4096), ("1k", 1 << 10), ("500M", 500 << 20), ("20G", 20 << 30)],
)
def test_sizes(size: str, bytes_: int) -> None:
    assert parsed("--cache-size", size).cache_size == bytes_


@pytest.mark.parametrize("size", ["", "-1", "G", "1.5G", "1GB", "x", "1" * 13])
def test_bad_sizes_name_the_flag(size: str) -> None:
    with pytest.raises(BadRequest, match="--cache-size"):
        parsed(f"--cache-size={size}")


@pytest.mark.parametrize(
    ("text", "seconds"), [("0", 0), ("90s", 90), ("24h", 86400), ("7d", 604800)]
)
def test_how_long_removed_files_are_kept(text: str, seconds: int) -> None:
    assert parsed("--trash", text).trash_seconds == seconds


@pytest.mark.parametrize("text", ["", "-1", "5", "0s", "day", "11000d"])
def test_a_bad_time_for_the_trash_names_the_flag(text: str) -> None:
    with pytest.raises(BadRequest, match=r"--trash.*or 0"):
        parsed(f"--trash={text}")


def test_an_external_store_is_cached() -> None:
    assert parsed("--store-file", "store.json").cache_size == 4 << 30
    assert parsed("--store-file", "store.json", "--cache-size", "0").cache_size == 0


def test_every_flag_arrives(tmp_path: Path) -> None:
    config = parsed(
        *("--state-dir", str(tmp_path), "--ssh-addr", "[::1]:22", "--api-addr", ":8080"),
        *("--meta-dsn", "postgresql://boxd@db/boxd", "--store-file", "store.json"),
        *("--default-image", "python", "--workspace-automount", "--trusted-proxy", "10.0.0.1"),
        *("--cache-dir", str(tmp_path / "cache"), "--cache-size", "1M"),
        "--verbose",
    )
    assert config.state_dir == tmp_path
    assert (config.ssh_addr, str(config.ssh_addr)) == (Address("::1", 22), "[::1]:22")
    assert config.api_addr == Address("0.0.0.0", 8080)  # noqa: S104 - what an empty host means
    assert config.meta_dsn == "postgresql://boxd@db/boxd"
    assert str(config.store_file) == "store.json"
    assert config.default_image == "python"
    assert config.workspace_automount
    assert config.trusted_proxy == "10.0.0.1"
    assert (config.cache_dir, config.cache_size) == (tmp_path / "cache", 1 << 20)
    assert config.verbose


@pytest.mark.parametrize(
    "address", ["", "22", "host", "host:", "host:x", "host:65536", "::1:22", "[::1:22", "h:-1"]
)
def test_bad_address_names_the_flag(address: str) -> None:
    with pytest.raises(BadRequest, match="--ssh-addr"):
        parsed("--ssh-addr", address)


@pytest.mark.parametrize(
    ("command", "flag"),
    [
        ("serve", "--admin-keys"),
        ("down", "--ssh-addr"),
        ("doctor", "--trusted-proxy"),
    ],
)
def test_a_flag_without_effect_is_refused(
    command: str, flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as usage:
        cli._parser().parse_args([command, flag, "1h"])
    assert usage.value.code == 2
    assert flag in capsys.readouterr().err


@pytest.mark.parametrize(
    "dsn", ["postgresql://boxd:hunter2@db/boxd", "host=db password=hunter2", "host=db PASSWORD=x"]
)
def test_password_on_the_command_line_is_refused(dsn: str) -> None:
    with pytest.raises(BadRequest, match="--meta-dsn-file") as refused:
        parsed("--meta-dsn", dsn)
    assert "hunter2" not in str(refused.value)


def test_dsn_comes_from_a_private_file_only(tmp_path: Path) -> None:
    file = tmp_path / "dsn"
    file.write_text("postgresql://boxd:hunter2@db/boxd\n")
    file.chmod(0o644)
    with pytest.raises(BadRequest, match="chmod 600"):
        parsed("--meta-dsn-file", str(file))
    file.chmod(0o600)
    config = parsed("--meta-dsn-file", str(file))
    assert config.meta_dsn == "postgresql://boxd:hunter2@db/boxd"
    assert "hunter2" not in repr(config)
    with pytest.raises(BadRequest, match="not both"):
        parsed("--meta-dsn-file", str(file), "--meta-dsn", "postgresql://db/boxd")
    with pytest.raises(BadRequest, match="No such file"):
        parsed("--meta-dsn-file", str(tmp_path / "absent"))


def test_exit_statuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = ("--state-dir", str(tmp_path / "state"))
    assert cli.main(["serve", *state, "--ssh-addr", "here"]) == 2
    assert "boxd: --ssh-addr" in capsys.readouterr().err
    with pytest.raises(SystemExit) as usage:
        cli.main(["dance"])
    assert usage.value.code == 2
    assert cli.main(["images", "build", "nope", *state]) == 2
    assert "'nope'" in capsys.readouterr().err


def test_refusal_to_serve_names_the_remedy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = tmp_path / "state"
    state.mkdir()
    state.chmod(0o755)
    assert cli.main(["serve", "--state-dir", str(state), "--ssh-addr", "127.0.0.1:0"]) == 1
    assert f"remedy: chown root {state} && chmod 700 {state}" in capsys.readouterr().err


@pytest.mark.slow
def test_doctor_prints_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("--state-dir", str(tmp_path / "state"), "--ssh-addr", "127.0.0.1:0")
    assert cli.main(["doctor", *flags]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["CHECK", "FOUND", "REMEDY"]
    assert any(line.startswith("/dev/fuse") and " ok " in line for line in lines)
    assert any(line.startswith("suspend ") for line in lines)
    assert list(tmp_path.iterdir()) == []


def test_down_says_that_nothing_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = tmp_path / "state"
    assert cli.main(["down", "--state-dir", str(state)]) == 1
    assert f"there is no directory {state}" in capsys.readouterr().err
    state.mkdir()
    assert cli.main(["down", "--state-dir", str(state)]) == 0
    assert capsys.readouterr().err == "nothing is running\n"
    assert list(state.iterdir()) == []


def test_an_interruption_while_the_service_is_imported_is_quiet(tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "class Interrupted:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'boxd.service': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupted())\n"
        "from boxd.cli import main\n"
        f"sys.exit(main(['images', 'ls', '--state-dir', {str(tmp_path)!r}]))\n"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, check=False, capture_output=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (cli.INTERRUPTED, b"", b"")


def test_where_lines_are_kept_a_step_is_shown_once() -> None:
    out = io.StringIO()
    with cli._progress(Console(file=out)) as progress:
        for percent in range(45, 90):
            progress(f"image debian: {percent:3.0f} % installing packages")
        progress("image debian: 100 % done")
    assert out.getvalue() == "boxd: image debian: installing packages\nboxd: image debian: done\n"


def test_log_lines_do_not_tear_a_spinner(capsys: pytest.CaptureFixture[str]) -> None:
    """The spinner stands in the place of stderr while it turns."""
    log.setup(verbose=False)
    inside = io.StringIO()
    with contextlib.redirect_stderr(inside):
        logging.getLogger("boxd.test").info("while it turns")
    logging.getLogger("boxd.test").info("after it")
    assert "while it turns" in inside.getvalue()
    written = capsys.readouterr().err
    assert "after it" in written
    assert "while" not in written


def test_an_image_comes_in_and_goes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = ["--state-dir", str(tmp_path / "state")]
    source = Tarball().system().symlink("wrk", "/etc").write(tmp_path / "mine.tar")
    assert cli.main(["images", "import", "mine", str(source), *state]) == 0
    told = capsys.readouterr()
    assert "/wrk was a link: it is an empty directory now" in told.err
    assert "image mine is imported: 0 MB in 3 files" in told.err
    assert cli.main(["images", "ls", *state]) == 0
    assert "mine    yes    Imported from mine.tar" in capsys.readouterr().out
    assert cli.main(["images", "rm", "mine", *state]) == 0
    assert cli.main(["images", "rm", "mine", *state]) == 2
    assert "there is no image 'mine'" in capsys.readouterr().err
    assert cli.main(["images", "import", "mine", str(tmp_path / "none"), *state]) == 2
    assert "none: No such file or directory" in capsys.readouterr().err


def test_images_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["images", "ls", "--state-dir", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["NAME", "BUILT", "DESCRIPTION"]
    assert lines[1].split()[:2] == ["debian", "no"]


def test_volumes_without_a_service(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["volumes", "ls", "--state-dir", str(tmp_path)]) == 1
    assert "has no service yet" in capsys.readouterr().err
    taken = tmp_path / "taken"
    taken.write_text("mine")
    words = ["volumes", "credentials", "v", str(taken), "--state-dir", str(tmp_path)]
    assert cli.main(words) == 2
    assert "exists" in capsys.readouterr().err
    assert taken.read_text() == "mine"


@pytest.mark.parametrize("flag", ["--idle-timeout", "--idle-reap", "--grace"])
def test_times_of_unused_boxes_are_durations(
    flag: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["serve", "--state-dir", str(tmp_path), flag, "soon"]) == 2
    assert flag in capsys.readouterr().err
