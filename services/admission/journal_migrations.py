"""Brings a journal to the present tables, in one transaction; a newer one is refused by name."""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy.schema import CreateIndex, CreateTable

from admission.journal_database import Connection
from admission.journal_schema import TABLES, VERSION
from worldline.errors import Precondition


def migrate(connection: Connection) -> None:
    """Inside of a transaction: create what is missing, change what is older.

    Raises:
        Precondition: JOURNAL_NEWER, a newer release has written it.
    """
    found = version_of(connection)
    if found > VERSION:
        raise Precondition(
            f"the journal {connection.where} is of schema {found}, written by a newer release; this one knows up to "
            f"{VERSION}: run that release, or give another journal",
            reason="JOURNAL_NEWER",
            numbers={"found": found, "known": VERSION},
        )
    if found == VERSION:
        return
    for version in range(found or VERSION, VERSION):
        _STEPS[version](connection)
    _create(connection)
    connection.execute("DELETE FROM schema_version")
    connection.execute("INSERT INTO schema_version VALUES (:version)", {"version": VERSION})
    if not connection.execute("SELECT 1 FROM leadership"):
        connection.execute("INSERT INTO leadership VALUES (1, 0, '', '', 0)")


def version_of(connection: Connection) -> int:
    """The schema of a journal; 0 if it is empty."""
    if connection.exists("schema_version"):
        return int(connection.execute("SELECT version FROM schema_version")[0][0])
    # The first schema did not name itself.
    return 1 if connection.exists("meta") else 0


def _create(connection: Connection) -> None:
    for table in TABLES.sorted_tables:
        connection.execute(str(CreateTable(table, if_not_exists=True).compile(dialect=connection.dialect)))
        for index in sorted(table.indexes, key=lambda index: str(index.name)):
            connection.execute(str(CreateIndex(index, if_not_exists=True).compile(dialect=connection.dialect)))


def _from_1(connection: Connection) -> None:
    """SQLite only. A move's message in parts, a lease's mover, the term among who leads; paths are learned anew."""
    for sql in (
        "ALTER TABLE moves ADD COLUMN receipts BLOB NOT NULL DEFAULT x''",
        "ALTER TABLE moves ADD COLUMN progress BLOB NOT NULL DEFAULT x''",
        "ALTER TABLE leases ADD COLUMN mover_id TEXT NOT NULL DEFAULT ''",
    ):
        connection.execute(sql)
    _create(connection)
    connection.execute("INSERT INTO leadership SELECT 1, value, '', '', 0 FROM meta WHERE name = 'term'")
    connection.execute("DROP TABLE meta")
    connection.execute("DROP TABLE profile")


_STEPS: dict[int, Callable[[Connection], None]] = {1: _from_1}
