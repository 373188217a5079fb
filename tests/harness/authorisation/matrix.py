"""The authorisation matrix: `tests/security/auth_matrix.toml` as rows, and what its columns are.

A row that is wrong in itself (a kind or a column that there is not) is an error when it is read.
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
    """A credential. `whose` key of the given name is shown; `addresses` whose box in which way."""

    whose: str | None = None
    key: str = ""
    addresses: Literal["name", "other workspace", "workspace/name", "id"] = "name"
    refused: bool = False
    """Nothing that needs a key is ever given to it."""


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
"""Credentials of HTTP that are keys, or should be."""
COOKIES = ("cookie_right", "cookie_other_box", "cookie_other_port")
MCP_COLUMNS = {name for name, column in COLUMNS.items() if not column.refused} - {
    "scoped_outside_name"
}
SSH_COLUMNS = ("none", "own", "other_owner", "admin")


@dataclass(frozen=True)
class Cell:
    """What is to come out; `effects` are sorted words."""

    status: int
    error: str
    effects: str = ""


@dataclass(frozen=True)
class Row:
    """One thing that can be asked for. `what` has its further fields, `cells` all its columns."""

    name: str
    what: Section
    cells: dict[str, Cell]

    def get(self, field: str, default: str = "") -> str:
        """A field of the row."""
        return str(self.what.get(field, default))

    def by(self, column: str, transport: Transport) -> Cell | None:
        """What is to come out of a column with a key in one place; None: there is no such cell."""
        read = transport in ("bearer", "x_api_key") or transport in self.what.get("reads", ())
        if column not in self.cells:
            return None
        cell = self.cells[column]
        if transport == "query" and cell == Cell(*self.what["good"]):
            cell = Cell(*self.what.get("good_query", self.what["good"]))
        return cell if read or self.what["kind"] == "public" else Cell(*REFUSED)


class Matrix:
    """The file, read and checked."""

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
        """The short name of an error text; the text itself when there is none."""
        found = [name for name, pattern in self._errors.items() if pattern.search(text)]
        return found[0] if len(found) == 1 else f"{text!r} ({found})"


def _typed(section: str, name: str, row: Section) -> Section:
    """A row of SSH with what it need not say."""
    kind = "sudo" if section == "sudo" else "account"
    line = None if section == "users" else name
    return {"kind": kind, "good": [0, "ok"], "line": line, "user": section, **row}


def _called(row: Section) -> Section:
    """A row of MCP with what it need not say."""
    return {"kind": "own", "good": [0, "ok"], "args": {}, **row}


def load() -> Matrix:
    """The matrix of the project."""
    return Matrix(FILE.read_text())
