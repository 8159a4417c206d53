"""The tables of the journal."""

from __future__ import annotations

SCHEMA = """
CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS hosts (
    host_id TEXT PRIMARY KEY, incarnation INTEGER NOT NULL, fenced INTEGER NOT NULL, fence_reason TEXT NOT NULL,
    registration BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS sessions (
    session_id TEXT PRIMARY KEY, host_id TEXT NOT NULL, incarnation INTEGER NOT NULL, epoch INTEGER NOT NULL,
    lost INTEGER NOT NULL, move_id TEXT NOT NULL, info BLOB NOT NULL);
CREATE INDEX IF NOT EXISTS sessions_by_host ON sessions (host_id);
CREATE INDEX IF NOT EXISTS sessions_lost ON sessions (lost) WHERE lost > 0;
CREATE TABLE IF NOT EXISTS moves (
    sequence INTEGER PRIMARY KEY AUTOINCREMENT, move_id TEXT UNIQUE NOT NULL, request_id TEXT UNIQUE NOT NULL,
    request_digest BLOB NOT NULL, session_id TEXT NOT NULL, phase INTEGER NOT NULL, closed INTEGER NOT NULL,
    source_dead INTEGER NOT NULL, destination_dead INTEGER NOT NULL,
    source_incarnation INTEGER NOT NULL, source_address TEXT NOT NULL,
    destination_incarnation INTEGER NOT NULL, destination_address TEXT NOT NULL,
    grant_token BLOB NOT NULL, traceparent TEXT NOT NULL, move BLOB NOT NULL);
CREATE INDEX IF NOT EXISTS moves_by_session ON moves (session_id, sequence);
CREATE INDEX IF NOT EXISTS moves_open ON moves (closed) WHERE closed = 0;
CREATE TABLE IF NOT EXISTS transitions (
    move_id TEXT NOT NULL, line INTEGER NOT NULL, at_s REAL NOT NULL, before INTEGER NOT NULL, event TEXT NOT NULL,
    after INTEGER NOT NULL, effects TEXT NOT NULL, PRIMARY KEY (move_id, line)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS leases (
    move_id TEXT PRIMARY KEY, host_id TEXT NOT NULL, slot_bytes INTEGER NOT NULL, begins_s REAL NOT NULL,
    ends_s REAL NOT NULL);
CREATE TABLE IF NOT EXISTS placements (
    sequence INTEGER PRIMARY KEY AUTOINCREMENT, request_id TEXT UNIQUE NOT NULL, request_digest BLOB NOT NULL,
    host_id TEXT NOT NULL, incarnation INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS profile (
    source_mover TEXT NOT NULL, destination_mover TEXT NOT NULL, transport TEXT NOT NULL,
    bandwidth_Bps REAL NOT NULL, setup_s REAL NOT NULL, moves INTEGER NOT NULL,
    PRIMARY KEY (source_mover, destination_mover, transport));
"""
