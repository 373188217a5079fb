"""What log lines never hold."""

from __future__ import annotations

import io
import json
import logging
import re
import time
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


SECRET = "ZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZ"
DIVIDED = (
    f"key svc_{SECRET}",
    f"user svcs_{SECRET}",
    f"postgresql://boxd:{SECRET}@/boxd?host=/run",
    f"postgresql://boxd:{SECRET}@{SECRET}@/boxd",
    f"host=x password={SECRET}",
    f'{{"secret_key": "{SECRET}"}}',
    f"Authorization: Basic {SECRET}",
    f"Cookie: a=b; svc_proxy={SECRET}",
    f"GET /v1/mcp?key={SECRET}&x=1",
    f"GET /v1/mcp?%6Be%79={SECRET}&x=1",
    f"Bearer {SECRET}",
    f"-----BEGIN OPENSSH PRIVATE KEY-----\n{SECRET}\n-----END",
    f"-----BEGIN PGP PRIVATE KEY BLOCK-----\n{SECRET}\n-----END",
)
"""Texts of one secret: wherever they are cut, none of it is left."""
ADVERSARIAL = (
    "a",
    "a://",
    "x://y:",
    "x://y:a",
    "://:",
    "svc_",
    "svc_aaaaaaaaaaaaaaa_",
    "svcs_a",
    "password",
    "password ",
    "password= ",
    "password='",
    "secret_key=\n",
    "token:",
    "cookie",
    "cookie \n",
    "cookie:\n",
    "authorization=\r",
    "?key=",
    "?key",
    "&k%65y=&",
    "bearer",
    "bearer ",
    "bearer\t",
    "-",
    "-----BEGIN ",
    "-----BEGIN A",
    "-----BEGIN PRIVATE KEY",
    "-----BEGIN PRIVATE KEY-----",
    "PRIVATE KEY",
)
"""Words that begin what a pattern looks for, repeated; the patterns fail as late as they can."""
ENDS = ("", " " * 1024, "\n" * 1024, "@")


def _cost(text: str) -> float:
    """Processor time of this thread that masking the whole of `text` takes."""
    begin = time.thread_time()
    log.redact(text, len(text))
    return time.thread_time() - begin


@pytest.mark.parametrize("word", ADVERSARIAL)
@pytest.mark.parametrize("begin", ["", "://x:", "-----BEGIN PRIVATE KEY-----", "bearer", "cookie"])
def test_masking_takes_time_linear_in_the_text(word: str, begin: str) -> None:
    """Eight times the text costs eight times as much; quadratic masking costs 64 times as much."""
    for end in ENDS:
        size = 3_000
        texts = [
            begin + word * (length // len(word)) + end * (length // size)
            for length in (size, 8 * size)
        ]
        small, large = zip(*(map(_cost, texts) for _ in range(3)), strict=True)
        if min(large) > 24 * min(small):
            # A machine under load once more: the least of many is what the work itself takes.
            small, large = zip(*(map(_cost, texts) for _ in range(20)), strict=True)
        assert min(large) < 24 * min(small), (begin, word, end[:1], min(small), min(large))


@pytest.mark.parametrize("text", DIVIDED)
def test_a_secret_is_masked_wherever_the_text_is_cut(text: str) -> None:
    assert SECRET[0] not in log.redact(text)
    for limit in range(1, len(text)):
        assert SECRET[0] not in log.redact(text, limit), limit


def test_one_line_holds_a_bounded_part_of_what_it_is_given(stream: io.StringIO) -> None:
    logger = logging.getLogger("boxd.test")
    logger.info("method %s", "a" * 1_000_000, extra={"field": "b" * 1_000_000})
    assert len(stream.getvalue()) < log.MAX_MESSAGE + 100
    assert "[199" in stream.getvalue()


def _raise_below(depth: int, text: str) -> None:
    if depth == 0:
        raise RuntimeError(text)
    (_raise_below if depth % 2 else _raise_other)(depth - 1, text)


def _raise_other(depth: int, text: str) -> None:
    _raise_below(depth - 1, text) if depth else _raise_below(0, text)


def test_a_traceback_is_bounded_and_its_innermost_exception_stays(stream: io.StringIO) -> None:
    try:
        _raise_below(301, "the cause " + "a" * 1_000_000)
    except RuntimeError:
        logging.getLogger("boxd.test").exception("failed")
    lines = stream.getvalue()
    assert "RuntimeError: the cause aaa" in lines
    assert "more frames]" in lines
    assert len(lines) < (log.FIRST_PIECES + log.LAST_PIECES + 1) * (log.MAX_PIECE + 100)


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


@pytest.fixture
def json_stream() -> Iterator[io.StringIO]:
    """Where JSON lines go; logging is as before afterwards."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    made = io.StringIO()
    log.setup(verbose=True, stream=made, is_json=True)
    yield made
    root.handlers[:] = handlers
    root.setLevel(level)
    for name in ("boxd", "wrkfs"):
        logging.getLogger(name).setLevel(logging.NOTSET)


def only(stream: io.StringIO) -> dict[str, object]:
    """The one JSON object of a log."""
    (line,) = stream.getvalue().splitlines()
    members = json.loads(line)
    assert isinstance(members, dict)
    return members


def test_a_json_line_has_the_record_and_its_fields(json_stream: io.StringIO) -> None:
    assert log.is_json()
    logging.getLogger("boxd.test").info(
        "box %s created", "dev", extra={"box": "0f3a", "image": "debian", "attempt": 2}
    )
    members = only(json_stream)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", str(members.pop("time")))
    assert members == {
        "level": "INFO",
        "logger": "boxd.test",
        "message": "box dev created",
        "box": "0f3a",
        "image": "debian",
        "attempt": 2,
    }


@pytest.mark.parametrize("text", DIVIDED)
def test_a_json_line_has_no_secret(text: str, json_stream: io.StringIO) -> None:
    try:
        raise RuntimeError(text)
    except RuntimeError:
        logging.getLogger("boxd.test").exception("%s", text, extra={"field": text})
    assert SECRET[:8] not in json_stream.getvalue()


@pytest.mark.parametrize("name", ["password", "token", "secret_key", "cookie", "authorization"])
def test_the_name_of_a_field_can_make_it_a_secret(name: str, json_stream: io.StringIO) -> None:
    logging.getLogger("boxd.test").info("login", extra={name: SECRET})
    assert only(json_stream)[name] == log.MASK


def test_a_field_cannot_replace_a_member_of_the_record(json_stream: io.StringIO) -> None:
    logging.getLogger("boxd.test").info("real", extra={"level": "low", "time": 3})
    members = only(json_stream)
    assert (members["level"], members["level_"], members["time_"]) == ("INFO", "low", 3)


def test_control_characters_cannot_end_a_json_line(json_stream: io.StringIO) -> None:
    logging.getLogger("boxd.test").info('one\n{"level": "ERROR"}\x1b[2J\u202e')
    message = only(json_stream)["message"]
    assert message == 'one\n{"level": "ERROR"}\\x1b[2J\\u202e'


def test_a_json_line_is_bounded(json_stream: io.StringIO) -> None:
    logging.getLogger("boxd.test").info("a" * 1_000_000, extra={"field": "b" * 1_000_000})
    assert len(json_stream.getvalue()) < log.MAX_MESSAGE + log.MAX_PIECE + 300


def test_a_traceback_is_one_member(json_stream: io.StringIO) -> None:
    try:
        raise ValueError("no")
    except ValueError:
        logging.getLogger("boxd.test").exception("failed")
    assert "ValueError: no" in str(only(json_stream)["exception"])


def test_text_is_the_default(stream: io.StringIO) -> None:
    assert not log.is_json()
    logging.getLogger("boxd.test").info("hello")
    assert stream.getvalue().endswith(" INFO boxd.test: hello\n")
