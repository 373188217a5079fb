"""PostgreSQL and Redis, with several connections each."""

from __future__ import annotations

import os
import socket
import subprocess
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

REDIS_PORT = 6379
CONSISTENT = """
    select a = t and t = b and b = d, n from
    (select sum(abalance) a from pgbench_accounts) x,
    (select sum(tbalance) t from pgbench_tellers) y,
    (select sum(bbalance) b from pgbench_branches) z,
    (select coalesce(sum(delta), 0) d, count(*) n from pgbench_history) h;
"""
"""Whether the four tables of pgbench agree, and how many transactions there were."""


def as_postgres(*command: str) -> list[str]:
    """Return the command line of a command that the user postgres runs."""
    return ["setpriv", "--reuid=postgres", "--regid=postgres", "--init-groups", *command]


class Session:
    """A session of psql that stays open."""

    def __init__(self) -> None:
        self._psql = subprocess.Popen(
            as_postgres("psql", "-X", "-q", "-t", "-A", "-F", " "),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd="/",
            text=True,
        )

    def ask(self, statement: str) -> str:
        """Return the one line of the answer."""
        if self._psql.stdin is None or self._psql.stdout is None:
            raise RuntimeError("psql has no streams")
        self._psql.stdin.write(" ".join(statement.split()) + "\n")
        self._psql.stdin.flush()
        return self._psql.stdout.readline().strip()

    def tell(self, statement: str) -> None:
        """Run a statement without an answer."""
        self.ask(f"{statement} select 1;")


@program("postgresql")
def postgresql(load: Load) -> Iterator[None]:
    """Debian's cluster under pgbench, and a session with a table in its memory."""
    output("pg_ctlcluster", "15", "main", "start")
    load.pids["postgres"] = int(Path("/run/postgresql/15-main.pid").read_text().split()[0])
    load.version = output("/usr/lib/postgresql/15/bin/postgres", "--version")
    output(*as_postgres("pgbench", "-i", "-q", "-s", "1", "postgres"))
    bench = as_postgres("pgbench", "-n", "-c", "3", "-j", "2", "-R", "100", "-T", "86400")
    load.start("pgbench", *bench, "postgres")
    session = Session()
    session.tell("alter role postgres password 'secret';")
    # Another one opens a connection for each of its queries.
    target = "host=127.0.0.1 user=postgres password=secret dbname=postgres"
    load.start("pgbench -C", "pgbench", "-n", "-S", "-C", "-T", "86400", target)
    session.tell("create temp table counter (n int); insert into counter values (0);")
    backend, done, number = session.ask("select pg_backend_pid();"), 0, 0
    while True:
        number += 1
        if int(session.ask("update counter set n = n + 1 returning n;")) != number:
            raise RuntimeError("the session lost a row of its table")
        if session.ask("select pg_backend_pid();") != backend:
            raise RuntimeError("the session has another server process")

        def transactions_go_on(before: int = done) -> bool:
            nonlocal done
            consistent, count = session.ask(CONSISTENT).split()
            if consistent != "t" or int(count) < before:
                raise RuntimeError(f"pgbench's tables disagree: {consistent}, {count}, {before}")
            done = int(count)
            return done > before

        until(transactions_go_on)
        yield


class Redis:
    """A connection to Redis."""

    def __init__(self) -> None:
        self._socket = socket.create_connection(("127.0.0.1", REDIS_PORT), ANSWER_TIMEOUT)
        self._lines = self._socket.makefile("rb")

    def send(self, *words: str) -> None:
        """Send a command."""
        parts = [f"*{len(words)}", *(part for word in words for part in (f"${len(word)}", word))]
        self._socket.sendall("".join(f"{part}\r\n" for part in parts).encode())

    def receive(self) -> list[str]:
        """Return the strings of an answer."""
        line = self._lines.readline().decode().strip()
        if line[0] == "*":
            return [word for _ in range(int(line[1:])) for word in self.receive()]
        if line[0] == "$":
            return [self._lines.readline().decode().strip()]
        if line[0] not in "+:":
            raise RuntimeError(line)
        return [line[1:]]

    def ask(self, *words: str) -> list[str]:
        """Send a command and return its answer."""
        self.send(*words)
        return self.receive()


@program("redis")
def redis(load: Load) -> Iterator[None]:
    """A server with an append-only file, a subscriber and a client that waits for a list."""
    load.version = output("redis-server", "--version")
    options = ("--appendonly", "yes", "--dir", "/root", "--io-threads", "2")
    load.start("redis", "redis-server", "--port", str(REDIS_PORT), *options)
    load.wait(Redis)
    client, subscriber, waiting = Redis(), Redis(), Redis()
    subscriber.ask("SUBSCRIBE", "news")
    run = os.urandom(8).hex()
    client.ask("SET", "run", run)
    waiting.send("BLPOP", "queue", "0")
    number = 0
    while True:
        number += 1
        seen = client.ask("INCR", "counter"), client.ask("GET", "run")
        if seen != ([str(number)], [run]):
            raise RuntimeError(f"Redis lost a change: {seen}, {number}")
        client.ask("PUBLISH", "news", str(number))
        if subscriber.receive() != ["message", "news", str(number)]:
            raise RuntimeError("the subscriber got another message")
        client.ask("RPUSH", "queue", str(number))
        if waiting.receive() != ["queue", str(number)]:
            raise RuntimeError("the waiting client got another element")
        waiting.send("BLPOP", "queue", "0")
        if number % 50 == 0:
            client.ask("BGREWRITEAOF")
        yield
