"""A connection to the journal's database: SQL with :names in, rows out; SQLite and PostgreSQL alike.

Statements are compiled for the driver once and then cost what the driver costs: a transition is on the path of a
session that stands still.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import create_engine, make_url, text
from sqlalchemy.engine import URL, Dialect
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import ArgumentError

from worldline.errors import Unavailable

Cell = str | int | float | bytes
# What a driver answers has the types of the schema, which no checker can know.
Row = tuple[Any, ...]

_CONNECT_TIMEOUT_S = 5
_CLOSE_TIMEOUT_S = 1.0


class PostgresUrl:
    """Where a journal on PostgreSQL is. Shown without its password.

    Raises:
        ValueError: not `postgresql+psycopg://user@host/database`.
    """

    def __init__(self, url: str) -> None:
        try:
            self.url: URL = make_url(url)
        except (ArgumentError, ValueError):
            raise ValueError(
                "the journal's URL cannot be read; postgresql+psycopg://user@host/database is needed"
            ) from None
        if self.url.drivername != "postgresql+psycopg" or not self.url.database:
            raise ValueError(
                f"the journal is a file or postgresql+psycopg://user@host/database, not {self.url.drivername}://..."
            )

    def __str__(self) -> str:
        return self.url.render_as_string(hide_password=True)


@dataclass(frozen=True, slots=True)
class Manners:
    """How a database begins a transaction, and one whose loss in a power cut means no more than asking again."""

    begin: tuple[str, ...]
    begin_unsynced: tuple[str, ...]
    end_unsynced: tuple[str, ...]
    # Appended to a SELECT whose rows must stay as they are until the transaction is over.
    share: str
    table_exists: str


_SQLITE = Manners(
    begin=("BEGIN IMMEDIATE",),
    begin_unsynced=("PRAGMA synchronous=NORMAL", "BEGIN IMMEDIATE"),
    end_unsynced=("PRAGMA synchronous=FULL",),
    share="",
    table_exists="SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = :name",
)
_POSTGRES = Manners(
    begin=("BEGIN",),
    begin_unsynced=("BEGIN", "SET LOCAL synchronous_commit = off"),
    end_unsynced=(),
    share=" FOR SHARE",
    table_exists="SELECT 1 FROM pg_tables WHERE schemaname = current_schema() AND tablename = :name",
)


class Connection:
    """One connection. Any thread may call; `transaction` keeps the others out."""

    def __init__(self, where: str, driver: DBAPIConnection, dialect: Dialect) -> None:
        self.where = where
        self.dialect = dialect
        self.manners = _POSTGRES if dialect.name == "postgresql" else _SQLITE
        self._driver = driver
        self._cursor = driver.cursor()
        self._compiled: dict[str, str] = {}
        self._lock = threading.RLock()
        self._holder = 0
        self.broken = False

    @property
    def mine(self) -> bool:
        """Whether this thread is inside of `transaction`."""
        return self._holder == threading.get_ident()

    def execute(self, sql: str, values: Mapping[str, Cell] | None = None) -> list[Row]:
        """The rows of a statement; none where it has no result. Raises Unavailable."""
        with self._lock, self._telling():
            self._cursor.execute(self._for_driver(sql), values or {})
            return list(self._cursor.fetchall()) if self._cursor.description else []

    def change(self, sql: str, values: Mapping[str, Cell] | None = None) -> int:
        """Run a statement. Returns how many rows it changed. Raises Unavailable."""
        with self._lock, self._telling():
            self._cursor.execute(self._for_driver(sql), values or {})
            return int(self._cursor.rowcount)

    def many(self, sql: str, rows: Iterable[Mapping[str, Cell]]) -> None:
        """One statement for each of `rows`. Raises Unavailable."""
        listed = list(rows)
        if listed:
            with self._lock, self._telling():
                self._cursor.executemany(self._for_driver(sql), listed)

    def exists(self, table: str) -> bool:
        """Whether there is such a table."""
        return bool(self.execute(self.manners.table_exists, {"name": table}))

    def _for_driver(self, sql: str) -> str:
        compiled = self._compiled.get(sql)
        if compiled is None:
            compiled = self._compiled[sql] = str(text(sql).compile(dialect=self.dialect))
        return compiled

    @contextmanager
    def transaction(self, *, synced: bool = True) -> Iterator[None]:
        """All or nothing. Raises Unavailable (JOURNAL_FAILED): nothing was done, unless `broken`, then nobody knows."""
        with self._lock:
            self._holder = threading.get_ident()
            try:
                for sql in self.manners.begin if synced else self.manners.begin_unsynced:
                    self.execute(sql)
                yield
                self._commit()
            except BaseException:
                self._roll_back()
                raise
            finally:
                self._holder = 0
                if not synced:
                    for sql in self.manners.end_unsynced:
                        self.execute(sql)

    def _commit(self) -> None:
        try:
            self.execute("COMMIT")
        except Unavailable:
            # Whether a server has committed before it was lost, nobody can say; SQLite says.
            self.broken = self.broken or self.manners is _POSTGRES
            raise

    def _roll_back(self) -> None:
        # Some errors, a full disk or a lost server among them, have ended the transaction already.
        if self.manners is _SQLITE and not getattr(self._driver, "in_transaction", False):
            return
        with suppress(Unavailable):
            self.execute("ROLLBACK")

    @contextmanager
    def _telling(self) -> Iterator[None]:
        try:
            yield
        except self.dialect.loaded_dbapi.Error as error:
            self.broken = self.broken or bool(getattr(self._driver, "closed", False))
            raise failed(f"the journal could not be used: {_first_line(error)}; nothing was done") from error

    def close(self) -> None:
        """Close. A call to a server that is in progress ends with an error."""
        idle = self._lock.acquire(timeout=_CLOSE_TIMEOUT_S)
        try:
            with suppress(self.dialect.loaded_dbapi.Error):
                self._driver.close()
        finally:
            if idle:
                self._lock.release()


def open_sqlite(path: Path, *, reads_only: bool = False) -> Connection:
    """A connection to a journal file. Raises sqlite3.Error."""
    dialect = create_engine("sqlite://", paramstyle="named").dialect
    driver = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    for pragma in (
        "journal_mode=WAL",
        "synchronous=FULL",
        # Checkpoints are journal_upkeep.py's, beside the transitions; this is for where it does not run.
        "wal_autocheckpoint=16384",
        *(("query_only=ON",) if reads_only else ()),
    ):
        driver.execute(f"PRAGMA {pragma}")
    return Connection(str(path), driver, dialect)  # type: ignore[arg-type]  # the protocol's cursor is positional


def open_postgres(where: PostgresUrl, lease_s: float) -> Connection:
    """A connection to a journal on a server. Raises Unavailable: JOURNAL_FAILED.

    `lease_s` bounds how long a process that was stopped in a transaction can hold up the others.
    """
    try:
        dialect = create_engine(where.url).dialect
    except ModuleNotFoundError:
        raise failed("a journal on PostgreSQL needs psycopg: pip install 'worldline[postgres]'") from None
    _, arguments = dialect.create_connect_args(where.url)
    arguments = {"connect_timeout": _CONNECT_TIMEOUT_S, "application_name": "worldline-admission", **arguments}
    try:
        driver = dialect.connect(**arguments, autocommit=True)
    except dialect.loaded_dbapi.Error as error:
        raise failed(
            f"the journal {where} cannot be opened: {_first_line(error)}; the server must run, and this role must be "
            "allowed to create tables in that database"
        ) from None
    connection = Connection(str(where), driver, dialect)
    milliseconds = max(int(lease_s * 1000), 1)
    for name in ("idle_in_transaction_session_timeout", "lock_timeout"):
        connection.execute(f"SET {name} = {milliseconds}")
    return connection


def failed(message: str) -> Unavailable:
    """The error of a journal that cannot be used."""
    return Unavailable(message, reason="JOURNAL_FAILED")


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]
