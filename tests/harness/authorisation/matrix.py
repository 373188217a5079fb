"""The authorisation matrix: the rows of `tests/security/auth_matrix.toml`, and its columns.

The parser raises an error for an invalid row, such as one with an unknown kind or column.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

FILE = Path(__file__).parents[2] / "security/auth_matrix.toml"
Section: TypeAlias = "Mapping[str, Any]"
Transport: TypeAlias = Literal["bearer", "x_api_key", "query", "cookie"]
TRANSPORTS: tuple[Transport, ...] = ("bearer", "x_api_key", "query", "cookie")
REFUSED = (401, "invalid_key", "")


@dataclass(frozen=True)
class Column:
    """A credential: the key named `key` of the owner `whose`. `addresses` is how it names a box."""

    whose: str | None = None
    key: str = ""
    addresses: Literal["name", "other workspace", "workspace/name", "id"] = "name"
    refused: bool = False
    """Whether every request that needs a key refuses this credential."""


COLUMNS = {
    "none": Column(refused=True),
    "malformed": Column(key="svc_0123", refused=True),
    "unknown": Column(key="svc_" + "0" * 40, refused=True),
    "revoked": Column("alice", "revoked", refused=True),
    "expired": Column("alice", "expired", refused=True),
    "share": Column("alice", "share", refused=True),
    "unscoped": Column("alice", "account"),
    "scoped_inside": Column("alice", "scoped"),
    "scoped_outside": Column("alice", "scoped", "other workspace"),
    "scoped_outside_name": Column("alice", "scoped", "workspace/name"),
    "scoped_foreign_id": Column("alice", "scoped", "id"),
    "other_owner": Column("bob", "account", "id"),
    "other_owner_scoped": Column("bob", "scoped", "id"),
    "admin": Column("admin", "account", "id"),
}
"""Credentials of HTTP that are keys, or pretend to be keys."""
COOKIES = ("cookie_right", "cookie_other_box", "cookie_other_port")
MCP_COLUMNS = {name for name, column in COLUMNS.items() if not column.refused} - {
    "scoped_outside_name"
}
SSH_COLUMNS = ("none", "own", "other_owner", "admin")


@dataclass(frozen=True)
class Cell:
    """The expected outcome; `effects` are sorted words."""

    status: int
    error: str
    effects: str = ""


@dataclass(frozen=True)
class Row:
    """One request of the matrix. `what` has its further fields, `cells` has one entry a column."""

    name: str
    what: Section
    cells: dict[str, Cell]

    def get(self, field: str, default: str = "") -> str:
        """Return a field of the row."""
        return str(self.what.get(field, default))

    def by(self, column: str, transport: Transport) -> Cell | None:
        """Return the expected outcome for a column and the place of its key; None without such a
        cell."""
        read = transport in ("bearer", "x_api_key") or transport in self.what.get("reads", ())
        if column not in self.cells:
            return None
        cell = self.cells[column]
        if transport == "query" and cell == Cell(*self.what["good"]):
            cell = Cell(*self.what.get("good_query", self.what["good"]))
        return cell if read or self.what["kind"] == "public" else Cell(*REFUSED)


class Matrix:
    """The parsed and checked file."""

    def __init__(self, text: str) -> None:
        file = tomllib.loads(text)
        self._errors = {name: re.compile(found) for name, found in file["errors"].items()}
        http, ssh, mcp = file["http"], file["ssh"], file["mcp"]
        refused = {name: REFUSED for name, column in COLUMNS.items() if column.refused}
        refused |= dict.fromkeys(COOKIES, REFUSED)
        known = {*COLUMNS, *COOKIES}
        self.http = [
            self._row(name, row, http["kinds"], refused, known)
            for name, row in http["rows"].items()
        ]
        self.mcp = {
            section: [
                self._row(name, _called(row), mcp["kinds"], {}, MCP_COLUMNS)
                for name, row in mcp[section].items()
            ]
            for section in ("tools", "resources")
        }
        self.ssh = {
            section: [
                self._row(name, _typed(section, name, row), ssh["kinds"], {}, set(SSH_COLUMNS))
                for name, row in ssh[section].items()
            ]
            for section in ("cli", "sudo", "users")
        }

    def _row(
        self,
        name: str,
        row: Section,
        kinds: Section,
        default: Mapping[str, object],
        known: set[str],
    ) -> Row:
        if row["kind"] not in kinds:
            raise ValueError(f"row {name}: there is no kind {row['kind']}")
        cells: dict[str, Any] = {**default, **kinds[row["kind"]]}
        cells |= {column: row[column] for column in known & row.keys()}
        if unknown := cells.keys() - known:
            raise ValueError(f"row {name}: there are no columns {unknown}")
        made = {}
        for column, cell in cells.items():
            made[column] = Cell(*(row["good"] if cell == "good" else cell))
            if made[column].error not in {*self._errors, "ok"}:
                raise ValueError(f"row {name}: there is no error {made[column].error}")
        return Row(name, row, made)

    def error(self, text: str) -> str:
        """Return the short name of an error text, or the text itself if it has no name."""
        found = [name for name, pattern in self._errors.items() if pattern.search(text)]
        return found[0] if len(found) == 1 else f"{text!r} ({found})"


def _typed(section: str, name: str, row: Section) -> Section:
    """Return a row of SSH with its default fields."""
    kind = "sudo" if section == "sudo" else "account"
    line = None if section == "users" else name
    return {"kind": kind, "good": [0, "ok"], "line": line, "user": section, **row}


def _called(row: Section) -> Section:
    """Return a row of MCP with its default fields."""
    return {"kind": "own", "good": [0, "ok"], "args": {}, **row}


def load() -> Matrix:
    """Return the matrix of the project."""
    return Matrix(FILE.read_text())
