"""The tables of a store in a PostgreSQL database, in a schema of their own beside those of other programs."""

from __future__ import annotations

from farflung.broker.storage.server_connection import ServerConnection
from farflung.errors import StoreError

_FIRST = """
CREATE TABLE version (number INTEGER NOT NULL);
INSERT INTO version (number) VALUES (0);
CREATE TABLE tokens (
    digest BYTEA PRIMARY KEY, role TEXT NOT NULL, uses BIGINT NOT NULL, used BIGINT NOT NULL,
    expires_at DOUBLE PRECISION NOT NULL, made_at DOUBLE PRECISION);
CREATE TABLE certificates (
    id TEXT COLLATE "C" PRIMARY KEY, role TEXT NOT NULL, key_digest BYTEA NOT NULL,
    token_digest BYTEA NOT NULL, certificate BYTEA NOT NULL);
CREATE TABLE events (sequence BIGINT PRIMARY KEY, at DOUBLE PRECISION NOT NULL, body BYTEA NOT NULL);
CREATE TABLE measurements (
    subject TEXT NOT NULL, object TEXT NOT NULL, body BYTEA NOT NULL, PRIMARY KEY (subject, object));
CREATE TABLE blobs (digest BYTEA PRIMARY KEY, body BYTEA NOT NULL);
CREATE TABLE snapshots (
    sequence BIGINT PRIMARY KEY, at DOUBLE PRECISION NOT NULL, digest BYTEA NOT NULL, body BYTEA NOT NULL);
CREATE TABLE owner (
    id INTEGER PRIMARY KEY CHECK (id = 1), epoch BIGINT NOT NULL, process TEXT NOT NULL, place TEXT NOT NULL,
    at TIMESTAMPTZ NOT NULL, expires_at TIMESTAMPTZ NOT NULL, authority BYTEA);
INSERT INTO owner VALUES (1, 0, 'none', '', clock_timestamp(), clock_timestamp());
"""
_SECOND = """
ALTER TABLE tokens ADD COLUMN scope TEXT NOT NULL DEFAULT '';
ALTER TABLE certificates ADD COLUMN scope TEXT NOT NULL DEFAULT '';
"""
_SCHEMAS = (_FIRST, _SECOND)
"""The changes that each schema version made to the one before."""

_SCHEMA_VERSION = len(_SCHEMAS)
_LOCK = 0x6661726C  # "farl": the advisory lock of those who make the schema


def make_schema(connection: ServerConnection, name: str) -> None:
    """Make the tables of a store, or bring older ones up to date.

    Raises
    ------
    StoreError
        A newer farflung has made them.
    """
    with connection.transaction(lambda: None):
        connection.execute("SELECT pg_advisory_xact_lock(?)", (_LOCK,))
        present = _version(connection)
        if present > _SCHEMA_VERSION:
            raise StoreError(
                f"the store {name} was written by a newer farflung (schema {present}, this one knows up to "
                f"{_SCHEMA_VERSION}): install that version again"
            )
        if not present:
            connection.execute("CREATE SCHEMA IF NOT EXISTS farflung")
        for schema in _SCHEMAS[present:]:
            connection.execute(schema)
        if present < _SCHEMA_VERSION:
            connection.execute("UPDATE version SET number = ?", (_SCHEMA_VERSION,))


def _version(connection: ServerConnection) -> int:
    ((table,),) = connection.execute("SELECT to_regclass('farflung.version')::text").fetchall()
    if table is None:
        return 0
    ((number,),) = connection.execute("SELECT number FROM version").fetchall()
    return int(number)
