"""The tables of the journal, the same on SQLite and on PostgreSQL."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Double, Identity, Index, Integer, LargeBinary, MetaData, Table, Text, text

# Raised with each change of the tables; journal_migrations.py brings older journals up to it.
VERSION = 2

TABLES = MetaData()
# Numbered by the database in the order of insertion. Only INTEGER names SQLite's own row number.
_NUMBERED = BigInteger().with_variant(Integer, "sqlite")


SCHEMA_VERSION = Table("schema_version", TABLES, Column("version", Integer, primary_key=True))

# One row: who leads. `beat` rises while the holder lives; each holder has its own term.
LEADERSHIP = Table(
    "leadership",
    TABLES,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("term", BigInteger, nullable=False),
    Column("holder", Text, nullable=False),
    Column("address", Text, nullable=False),
    Column("beat", BigInteger, nullable=False),
)

HOSTS = Table(
    "hosts",
    TABLES,
    Column("host_id", Text, primary_key=True),
    Column("incarnation", BigInteger, nullable=False),
    Column("fenced", Integer, nullable=False),
    Column("fence_reason", Text, nullable=False),
    Column("registration", LargeBinary, nullable=False),
)

# `lost` is 0, or the number of the loss, so that the oldest can be let go.
SESSIONS = Table(
    "sessions",
    TABLES,
    Column("session_id", Text, primary_key=True),
    Column("host_id", Text, nullable=False),
    Column("incarnation", BigInteger, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("lost", BigInteger, nullable=False),
    Column("move_id", Text, nullable=False),
    Column("info", LargeBinary, nullable=False),
)
Index("sessions_by_host", SESSIONS.c.host_id)
Index("sessions_lost", SESSIONS.c.lost, sqlite_where=text("lost > 0"), postgresql_where=text("lost > 0"))

# A Move message in three parts, which read one after the other are the whole: `move` is written once, `receipts` once
# both are there, `progress` at each transition.
MOVES = Table(
    "moves",
    TABLES,
    Column("sequence", _NUMBERED, Identity(), primary_key=True),
    Column("move_id", Text, unique=True, nullable=False),
    Column("request_id", Text, unique=True, nullable=False),
    Column("request_digest", LargeBinary, nullable=False),
    Column("session_id", Text, nullable=False),
    Column("phase", Integer, nullable=False),
    Column("closed", Integer, nullable=False),
    Column("source_dead", Integer, nullable=False),
    Column("destination_dead", Integer, nullable=False),
    Column("source_incarnation", BigInteger, nullable=False),
    Column("source_address", Text, nullable=False),
    Column("destination_incarnation", BigInteger, nullable=False),
    Column("destination_address", Text, nullable=False),
    Column("grant_token", LargeBinary, nullable=False),
    Column("traceparent", Text, nullable=False),
    Column("move", LargeBinary, nullable=False),
    Column("receipts", LargeBinary, nullable=False),
    Column("progress", LargeBinary, nullable=False),
    sqlite_autoincrement=True,
)
Index("moves_by_session", MOVES.c.session_id, MOVES.c.sequence)
Index("moves_open", MOVES.c.closed, sqlite_where=text("closed = 0"), postgresql_where=text("closed = 0"))

TRANSITIONS = Table(
    "transitions",
    TABLES,
    Column("move_id", Text, primary_key=True),
    Column("line", Integer, primary_key=True, autoincrement=False),
    Column("at_s", Double, nullable=False),
    Column("before", Integer, nullable=False),
    Column("event", Text, nullable=False),
    Column("after", Integer, nullable=False),
    Column("effects", Text, nullable=False),
    sqlite_with_rowid=False,
)

LEASES = Table(
    "leases",
    TABLES,
    Column("move_id", Text, primary_key=True),
    Column("host_id", Text, nullable=False),
    Column("mover_id", Text, nullable=False),
    Column("slot_bytes", BigInteger, nullable=False),
    Column("begins_s", Double, nullable=False),
    Column("ends_s", Double, nullable=False),
)

PLACEMENTS = Table(
    "placements",
    TABLES,
    Column("sequence", _NUMBERED, Identity(), primary_key=True),
    Column("request_id", Text, unique=True, nullable=False),
    Column("request_digest", LargeBinary, nullable=False),
    Column("host_id", Text, nullable=False),
    Column("incarnation", BigInteger, nullable=False),
    sqlite_autoincrement=True,
)

ESTIMATES = Table(
    "estimates",
    TABLES,
    Column("source_mover", Text, primary_key=True),
    Column("destination_mover", Text, primary_key=True),
    Column("idiom", Text, primary_key=True),
    Column("quantity", Text, primary_key=True),
    Column("mean", Double, nullable=False),
    Column("deviation", Double, nullable=False),
    Column("weight", Double, nullable=False),
    Column("suspect_mean", Double, nullable=False),
    Column("suspects", Integer, nullable=False),
    Column("sampled_at_s", Double, nullable=False),
    sqlite_with_rowid=False,
)

SCHEDULES = Table(
    "schedules",
    TABLES,
    Column("sequence", _NUMBERED, Identity(), primary_key=True),
    Column("schedule_id", Text, unique=True, nullable=False),
    Column("request_id", Text, unique=True, nullable=False),
    Column("request_digest", LargeBinary, nullable=False),
    Column("host_id", Text, nullable=False),
    Column("state", Integer, nullable=False),
    Column("patience_s", Double, nullable=False),
    Column("created_at_s", Double, nullable=False),
    Column("closed_at_s", Double, nullable=False),
    Column("predicted_s", Double, nullable=False),
    sqlite_autoincrement=True,
)
Index("schedules_open", SCHEDULES.c.state, sqlite_where=text("state = 1"), postgresql_where=text("state = 1"))

STEPS = Table(
    "steps",
    TABLES,
    Column("schedule_id", Text, primary_key=True),
    Column("line", Integer, primary_key=True, autoincrement=False),
    Column("session_id", Text, nullable=False),
    Column("source_host_id", Text, nullable=False),
    Column("destination_host_id", Text, nullable=False),
    Column("pinned", Integer, nullable=False),
    Column("round", Integer, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("state", Integer, nullable=False),
    Column("move_id", Text, nullable=False),
    Column("predicted_s", Double, nullable=False),
    Column("reason", Text, nullable=False),
    Column("message", Text, nullable=False),
    sqlite_with_rowid=False,
)

DRAINS = Table(
    "drains",
    TABLES,
    Column("host_id", Text, primary_key=True),
    Column("since_s", Double, nullable=False),
    Column("schedule_id", Text, nullable=False),
)
