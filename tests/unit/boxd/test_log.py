"""What log lines never hold."""

from __future__ import annotations

import io
import logging
from typing import TYPE_CHECKING

import pytest

from boxd import log

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    """Where lines go; logging is as before afterwards."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    made = io.StringIO()
    log.setup(verbose=True, stream=made)
    yield made
    root.handlers[:] = handlers
    root.setLevel(level)
    for name in ("boxd", "wrkfs"):
        logging.getLogger(name).setLevel(logging.NOTSET)


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("key svc_0123456789abcdef0123456789abcdef01234567", "0123456789abcdef"),
        ("user svcs_0123456789abcdef0123456789abcdef", "0123456789abcdef"),
        ("postgresql://boxd:hunter2@/boxd?host=/run", "hunter2"),
        ("dsn host=x password=hunter2 user=y", "hunter2"),
        ('{"secret_key": "hunter2"}', "hunter2"),
        ("Authorization: Bearer hunter2", "hunter2"),
        ("X-Api-Key: hunter2", "hunter2"),
        ("Cookie: svc_proxy=hunter2; a=b", "hunter2"),
        ("GET /v1/mcp?key=hunter2&x=1", "hunter2"),
        ("GET /v1/mcp?k%65y=hunter2", "hunter2"),
        ("-----BEGIN OPENSSH PRIVATE KEY-----\nhunter2\n-----END", "hunter2"),
    ],
)
def test_secrets_are_masked_wherever_they_stand(
    stream: io.StringIO, text: str, secret: str
) -> None:
    logger = logging.getLogger("boxd.test")
    logger.info(text)
    logger.info("%s", text, extra={"field": text})
    try:
        raise RuntimeError(text)
    except RuntimeError:
        logger.exception("failed")
    assert secret not in stream.getvalue()
    assert log.MASK in stream.getvalue()


def test_plain_text_is_kept(stream: io.StringIO) -> None:
    logging.getLogger("boxd.test").info("box created", extra={"box": "0f3a", "image": "debian"})
    assert stream.getvalue().endswith("INFO boxd.test: box created box=0f3a image=debian\n")


def test_control_characters_cannot_forge_lines(stream: io.StringIO) -> None:
    logging.getLogger("boxd.test").info("one\ntwo\r\x1b[2Jthree\u202efour")
    assert len(stream.getvalue().splitlines()) == 1
    assert "one\\ntwo\\r\\x1b[2Jthree\\u202efour" in stream.getvalue()


def test_foreign_loggers_are_quiet(stream: io.StringIO) -> None:
    logging.getLogger("asyncssh").info("chatter")
    logging.getLogger("some.library").info("chatter")
    assert stream.getvalue() == ""
